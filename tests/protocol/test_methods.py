"""The tables of methods agree with the schemas."""

from collections.abc import Mapping
from typing import Any

import pytest

from genmcp.protocol.methods import METHODS
from genmcp.protocol.revisions.chain import REVISIONS
from tests.protocol.test_definitions import LEFT_OUT
from tests.support.definitions import VALUES, definitions, method

CLIENT = ("ClientRequest", "ClientNotification")
SERVER = ("ServerRequest", "ServerNotification", "InputRequest")


#: The methods of the tasks extension, which are not in the schema.
TASKS = ("tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks")


def sent(version: str, unions: tuple[str, ...]) -> set[str]:
    """Return the definitions of the messages that one side sends, without the excluded ones."""
    found = [definitions(version)[union] for union in unions if union in definitions(version)]
    references = [each.get("anyOf", [{"$ref": "/CancelledNotification"}]) for each in found]
    names = {reference["$ref"].rsplit("/")[-1] for each in references for reference in each}
    return names - set(LEFT_OUT)


@pytest.mark.parametrize("version", REVISIONS)
def test_methods_and_their_senders_match_the_schema(version: str) -> None:
    """Client and server may send exactly the methods that the schema lists for them."""
    revision = REVISIONS[version]
    names: Mapping[str, Any] = {
        name: found.name for name in definitions(version) if (found := method(revision, name))
    }

    for unions, other in ((CLIENT, "server"), (SERVER, "client")):
        allowed = {
            each.name
            for each in revision.methods.values()
            if each.sender != other and each.name not in TASKS
        }
        assert allowed == {names[name] for name in sent(version, unions)}


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_methods_have_the_params_of_the_schema(version: str) -> None:
    """The params of each method have the type that its definition names."""
    for name, definition in definitions(version).items():
        found = method(REVISIONS[version], name)
        reference = definition.get("properties", {}).get("params", {}).get("$ref", "")
        # In 2026-07-28 `roots/list` has no params but `_meta`.
        if found and reference and found.name != "roots/list":
            assert reference.endswith(f"/{found.params.__name__}")


@pytest.mark.parametrize("version", REVISIONS)
def test_methods_have_the_results_of_the_schema(version: str) -> None:
    """The name of a result is that of its request; a notification has no result."""
    for name in definitions(version):
        found = method(REVISIONS[version], name)
        if found is None:
            continue
        stem = name.removesuffix("Request")
        if found.is_notification:
            assert name.endswith("Notification")
        else:
            result = found.result.__name__ if found.result else None
            assert result == (f"{stem}Result" if f"{stem}Result" in VALUES else "Result")


def test_methods_with_a_name_repeat_it_in_a_header() -> None:
    """2026-07-28, Streamable HTTP: three methods; SEP-2663: the methods about one task."""
    named = {each.name: each.name_member for each in METHODS.values() if each.name_member}
    tasks = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "task_id")

    routed = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
    assert named == {**routed, **tasks}
    assert set(routed) == {each.name for each in METHODS.values() if each.may_ask}
    assert set(routed) == {each.name for each in METHODS.values() if each.routed}
    assert not any(
        each.may_ask
        for revision in REVISIONS.values()
        if not revision.modern
        for each in revision.methods.values()
    )


def test_methods_decode_their_params() -> None:
    """Decoders are made in advance, not with the first message."""
    params = METHODS["resources/read"].params_decoder.decode(b'{"uri":"file:///a"}')

    assert params == METHODS["resources/read"].params("file:///a")
