"""Invalid options for long calls and for stores are rejected by the constructor."""

from typing import Any

import pytest

from genmcp import ConfigurationError, MemoryStore, Mux, Suite, Tool, WorkRaised
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import check_json
from genmcp.errors import ContractError


def tool_with(**attributes: Any) -> Tool:
    class Odd(Tool):
        """Is odd."""

        name = "odd"

        def call(self, request: Any, channel: Any) -> str:
            return "odd"

    made = Odd()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"task": "sometimes"}, "Odd.task must be 'never' or 'auto' or 'always', not 'sometimes'"),
        (
            {"on_worker_lost": "retry"},
            "Odd.on_worker_lost must be 'rerun' or 'fail' or None, not 'retry'",
        ),
        ({"promote_after": 0}, "Odd.promote_after must be a positive number of seconds, not 0"),
        ({"max_hold": True}, "Odd.max_hold must be a positive number of seconds, not True"),
        ({"result_ttl": None}, "Odd.result_ttl must be a positive number of seconds, not None"),
        ({"task": "never", "requires_tasks": True}, "Odd: task = 'never', and requires_tasks"),
    ],
)
def test_policy_that_is_wrong_is_refused_with_its_tool(
    attributes: dict[str, Any], message: str
) -> None:
    """The error has the class, the attribute, and the accepted values."""
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        Suite(name="test", version="1", tools=[tool_with(**attributes)])


@pytest.mark.parametrize("name", ["queue", "task"])
def test_own_attribute_with_the_name_of_an_option_is_named(name: str) -> None:
    """`self.queue` and `self.task` are common names: the error states that they are options."""

    class Prints(Tool):
        """Prints."""

        name = "prints"

        def __init__(self) -> None:
            setattr(self, name, object())

        def call(self, request: Any, channel: Any) -> str:
            return ""

    with pytest.raises(
        ConfigurationError, match=rf"Prints\.{name} .*: {name} is an option of tools"
    ):
        Suite(name="test", version="1", tools=[Prints])


class Bare(MemoryStore):
    """A store without support for jobs."""

    deliveries = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (Bare(), "does not deliver jobs: implement Store.deliveries"),
        (7, "store must be a Store or its URL, not 7"),
        ("mongo://x", "store: 'mongo://x' is not supported"),
    ],
)
def test_store_that_cannot_be_used_is_refused(store: Any, message: str) -> None:
    """By the constructor; the message has the accepted values."""
    with pytest.raises(ConfigurationError, match=message):
        Mux(Suite(name="test", version="1"), store=store)


def test_json_that_nests_too_deep_is_reported_with_its_path() -> None:
    """The error has the path of the value."""
    value: Any = "x"
    for _ in range(100):
        value = [value]

    with pytest.raises(ContractError, match=r"^own\[0\]\[0\].* nests deeper than 64 levels"):
        check_json("own", value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("inf"), "own is inf, which JSON does not have"),
        ({"a": [1.5, {1: 2}]}, r"own\.a\[1\] has the key 1; in JSON keys are texts"),
        ({"at": {1, 2}}, "own.at is set, which is not JSON"),
    ],
)
def test_value_that_is_not_json_is_reported(value: Any, message: str) -> None:
    """The first value that is not JSON is reported with its path."""
    check_json("own", {"a": [None, True, 1, 1.5, "x", ()]})
    with pytest.raises(ContractError, match=message):
        check_json("own", value)


def test_names_of_questions_are_unique_in_a_call() -> None:
    """A key that is used again gets a new name, different from all other keys."""
    continuation = Continuation("id", 1, "tool", "asked", {})
    names = []
    for _ in range(3):
        continuation = continuation.asking({"a": b"", "a.2": b"", "a.3": b""}, alone=False)
        names += [each.name for each in continuation.asked]
        continuation = continuation.then("asked", {})

    assert len(names) == len({*names})
    assert names[:3] == ["a", "a.2", "a.3"]


def test_failures_with_the_same_text_are_equal() -> None:
    """Errors with the same text are equal, even after they were stored, and can be in a set."""
    failures = {
        WorkRaised("r", "KeyError"),
        WorkRaised("r", "KeyError"),
        WorkRaised("s", "KeyError"),
    }

    assert len(failures) == 2
    assert WorkRaised("r", "KeyError") != KeyError("r")
