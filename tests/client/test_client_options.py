"""Options of a client, and its description of itself."""

import pytest

import genmcp
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError


def test_options_say_which_version_the_client_is() -> None:
    """A server that logs its clients sees the version that is installed."""
    assert ("genmcp", genmcp.__version__) == (
        ClientOptions().info.name,
        ClientOptions().info.version,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", 0),
        ("idle_timeout", -1),
        ("max_input_rounds", 0),
        ("max_pending", -1),
        ("cache_size", -1),
        ("input_concurrency", 17),
        ("max_poll_failures", 0),
        ("revision", "2020-01-01"),
    ],
)
def test_options_that_mean_nothing_are_refused(option: str, value: object) -> None:
    """A wrong option is rejected at construction, by name."""
    with pytest.raises(ConfigurationError, match=f"ClientOptions.{option}"):
        ClientOptions(**{option: value})  # type: ignore[arg-type]
