"""What a client remembers of servers it has met."""

import pytest

from genmcp.client.eras import Eras
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError


def test_eras_are_remembered_until_forgotten() -> None:
    """A server's revision is known until somebody finds it wrong."""
    eras = Eras()
    eras.remember("http://a", "2025-06-18")
    assert eras.get("http://a") == "2025-06-18"
    eras.forget("http://a")
    assert eras.get("http://a") is None


def test_eras_forget_the_server_met_longest_ago() -> None:
    """The memory is bounded."""
    eras = Eras(2)
    for server in ("a", "b", "a", "c"):
        eras.remember(server, "2026-07-28")
    assert [eras.get(server) is None for server in "abc"] == [False, True, False]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", 0),
        ("idle_timeout", -1),
        ("rounds", 0),
        ("max_pending", -1),
        ("cache", -1),
        ("questions", 17),
        ("revision", "2020-01-01"),
    ],
)
def test_options_that_mean_nothing_are_refused(option: str, value: object) -> None:
    """A wrong option fails where it is given, and says its name."""
    with pytest.raises(ConfigurationError, match=f"ClientOptions.{option}"):
        ClientOptions(**{option: value})  # type: ignore[arg-type]
