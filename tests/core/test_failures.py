"""The response to an exception of a hook: 2026-07-28, server/tools, "Error Handling"."""

import msgspec
import pytest

from genmcp.core.failures import failure_result, is_expected
from genmcp.core.outcome import Done, Failed, pack, unpack
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import (
    CapabilityMissing,
    ContractError,
    InternalError,
    InvalidArguments,
    InvalidParams,
    McpError,
    MissingCapability,
    Overloaded,
    OverShare,
    ResourceNotFound,
    StoreFull,
    StoreUnavailable,
    ToolError,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkerLost,
    WorkRaised,
)
from genmcp.faults import Fault, Mismatch
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.content import TextContent
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import CallToolResult

ARGUMENTS = InvalidArguments("add", [Fault(["a"], Mismatch("a number", 'the string "x"'))])


def request(method: str = "tools/call", revision: Revision = LATEST) -> Request:
    return Request(
        id=1,
        method=method,
        params=RequestParams(),
        raw=msgspec.Raw(),
        revision=revision,
        client=ClientInfo(revision.version),
    )


def failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text)], is_error=True)


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_invalid_arguments_are_a_result_in_every_revision(revision: Revision) -> None:
    """SEP-1303; "Invalid input data" was among the tool execution errors before it, too."""
    outcome = failure_result(ARGUMENTS, request(revision=revision), "ref")

    fault = {
        "pointer": "/a",
        "message": 'expected a number, got the string "x"',
        "expected": "a number",
        "actual": 'the string "x"',
    }
    meta = {"io.genmcp/error": {"name": "add", "faults": [fault]}}
    assert msgspec.structs.replace(failed(ARGUMENTS.message), meta=meta) == outcome


def test_unable_for_lack_of_tasks_names_a_remedy_before_2026() -> None:
    """No client of a 2025 session can declare the extension: its name alone does not help."""
    error = CapabilityMissing({"extensions": {TASKS: {}}})

    outcome = failure_result(error, request(revision=REVISIONS["2025-11-25"]), "ref")

    assert isinstance(outcome, CallToolResult)
    assert outcome.is_error
    assert "2026-07-28" in outcome.text
    assert TASKS in outcome.text


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
def test_failure_a_tool_raises_to_be_read_is_a_result(revision: Revision) -> None:
    """The text of a ToolError is shown as it is, in every revision."""
    assert failed("disk full") == failure_result(
        ToolError("disk full"), request(revision=revision), ""
    )


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
@pytest.mark.parametrize(
    "error",
    [
        InvalidParams("no"),
        MissingCapability({"sampling": {}}),
        ResourceNotFound("file:///a"),
        McpError("no", code=-32099),
        InternalError("broken", reference="own"),
        Overloaded("later"),
    ],
)
def test_failure_that_is_a_protocol_error_stays_one(error: McpError, method: str) -> None:
    """An McpError is sent unchanged, for every method."""
    assert error is failure_result(error, request(method), "ref")


def test_failure_of_arguments_elsewhere_is_a_protocol_error() -> None:
    """Only a call has a result that a model reads."""
    assert ARGUMENTS is failure_result(ARGUMENTS, request("prompts/get"), "ref")


@pytest.mark.parametrize("error", [ToolError("it took too long"), WaitTimedOut()])
def test_failure_raised_to_be_shown_is_shown_elsewhere_too(error: Exception) -> None:
    """Outside of a call, the text of a ToolError or WaitError is that of an error."""
    outcome = failure_result(error, request("prompts/get"), "ref")

    assert isinstance(outcome, McpError)
    assert (outcome.message, outcome.code, outcome.status) == ("it took too long", -32603, 200)


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WorkRaised("f00", "KeyError"), "it failed unexpectedly (reference f00)"),
        (WorkRaised("f00", "ToolError", "disk full"), "disk full"),
        (WorkerLost(), "it was lost: the process that worked on it is gone"),
        (WaitTimedOut(), "it took too long"),
        (WaitCancelled(), "it was cancelled"),
    ],
)
def test_wait_error_that_leaves_a_hook_is_a_result(
    error: WaitError, text: str, revision: Revision
) -> None:
    """Its text may be shown on every carrier, so that `outcome.result()` needs no `try`."""
    with pytest.raises(WaitError) as raised:
        Failed(error).result()

    assert failed(text) == failure_result(raised.value, request(revision=revision), "ref")


def test_result_of_a_failed_outcome_raises_an_equal_error() -> None:
    """Not the same one: that would be in a reference cycle with the frames of its traceback."""
    error = WorkRaised("f00", "KeyError")
    error.__cause__ = cause = KeyError("secret")

    with pytest.raises(WorkRaised) as raised:
        Failed(error).result()

    assert error == raised.value
    assert error is not raised.value
    assert cause is raised.value.__cause__
    assert error.__traceback__ is None


def test_result_of_an_outcome_is_its_value() -> None:
    """`Done.result()` returns the value, without a `match`."""
    assert Done(7).result() == 7


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_failure_to_ask_a_client_names_the_capability_it_lacks(method: str) -> None:
    """2026-07-28, basic, "_meta": -32021 with the missing capabilities."""
    outcome = failure_result(CapabilityMissing({"sampling": {}}), request(method), "ref")

    assert isinstance(outcome, MissingCapability)
    assert (outcome.code, outcome.status) == (-32021, 400)
    assert outcome.data == {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_missing_capability_is_a_text_in_earlier_revisions(version: str) -> None:
    """Earlier revisions have no such error: a call fails with the text, all else with -32603."""
    error, revision = CapabilityMissing({"sampling": {}}), REVISIONS[version]
    elsewhere = failure_result(error, request("prompts/get", revision), "ref")

    assert failed(str(error)) == failure_result(error, request(revision=revision), "ref")
    assert isinstance(elsewhere, McpError)
    assert (str(error), -32603) == (elsewhere.message, elsewhere.code)


@pytest.mark.parametrize("method", ["tools/call", "tasks/get"])
def test_failure_of_the_store_may_be_asked_again(method: str) -> None:
    """The tool is not at fault: a full disk may have room later. The error's text stays here."""
    outcome = failure_result(StoreUnavailable("/var/db: disk full"), request(method), "ref17")

    assert isinstance(outcome, Overloaded)
    assert (outcome.code, outcome.status) == (-32603, 503)
    assert outcome.message == "The server cannot keep what this needs now (reference ref17)"


@pytest.mark.parametrize("method", ["tools/call", "tasks/get"])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OverShare("its share (limit: x)"), 429, "its share (limit: x)"),
        (StoreFull("/var/db: max_bytes=1"), 503, "The server's store is full"),
    ],
)
def test_store_without_room_refuses_the_request(
    error: Exception, status: int, message: str, method: str
) -> None:
    """429 and the setting for a client past its share, 503 where the store has no room at all."""
    outcome = failure_result(error, request(method), "ref17")

    assert isinstance(outcome, Overloaded)
    assert (status, message) == (outcome.status, outcome.message)
    assert is_expected(error)


def test_unexpected_failure_shows_its_reference_only() -> None:
    """The text of any other exception stays here."""
    outcome = failure_result(ValueError("the password is x"), request(), "ref17")

    assert failed("The tool failed unexpectedly (reference ref17).") == outcome


@pytest.mark.parametrize(
    ("error", "method"),
    [
        (ValueError("the password is x"), "prompts/get"),
        (ContractError("Add.call returned x"), "prompts/get"),
        (ContractError("Add.call returned x"), "tools/call"),
    ],
)
def test_failure_of_the_server_is_an_internal_error(error: Exception, method: str) -> None:
    """A broken contract, and a surprise outside of a call, are -32603 with a reference."""
    outcome = failure_result(error, request(method), "ref17")

    assert isinstance(outcome, InternalError)
    assert (
        outcome.message,
        outcome.data,
    ) == ("Internal error (reference ref17)", {"reference": "ref17"})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolError("no"), True),
        (InvalidParams("no"), True),
        (ARGUMENTS, True),
        (CapabilityMissing({"sampling": {}}), True),
        (WorkerLost(), True),
        (InternalError(), False),
        (ContractError("no"), False),
        (StoreUnavailable("no"), False),
        (ValueError("no"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_failure_is_logged_unless_it_was_raised_to_be_shown(
    error: BaseException, expected: bool
) -> None:
    """A reference in a response has its cause in the log."""
    assert expected == is_expected(error)


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (WorkRaised("f00", "KeyError"), b'{"failure":"Raised","fields":["f00","KeyError",null]}'),
        (WorkerLost(), b'{"failure":"Lost"}'),
        (WaitTimedOut(), b'{"failure":"TimedOut"}'),
        (WaitCancelled(), b'{"failure":"Cancelled"}'),
        (CapabilityMissing({}), b'{"failure":"Unable","fields":[{}]}'),
    ],
)
def test_stored_name_of_an_error_is_not_that_of_its_class(error: WaitError, stored: bytes) -> None:
    """A class may be renamed: records of earlier releases stay readable."""
    assert stored == pack(Failed(error))
    assert Failed(error) == unpack(stored)
