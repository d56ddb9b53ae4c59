"""The exceptions that genmcp raises, with their JSON-RPC codes and HTTP statuses.

    GenmcpError
    ├── McpError                   answered as a JSON-RPC error: `code`, `status`, `message`, `data`
    │   ├── ParseError             -32700  the body is not JSON
    │   ├── InvalidRequest         -32600  JSON, but not a message this endpoint takes
    │   │   ├── HttpRejected       -32600  turned away by the HTTP head; carries its own status
    │   │   │   └── NotAllowed     -32600  not with this HTTP method; says which
    │   │   ├── TooLarge           -32600  the body is larger than it may be
    │   │   ├── BodyTimeout        -32600  the body did not arrive in time
    │   │   └── SessionNotFound    -32600  the session id is unknown, forged, ended or too old
    │   ├── MethodNotFound         -32601
    │   ├── InvalidParams          -32602  the parameters are not what the method takes
    │   │   ├── MalformedParams    -32602  ... so much that no handler saw them
    │   │   ├── InvalidArguments -32602  a tool's arguments (genmcp.faults); lists each fault
    │   │   ├── ToolNotFound       -32602
    │   │   ├── PromptNotFound     -32602
    │   │   ├── ResourceNotFound -32602  (-32002 before 2026-07-28)
    │   │   └── TaskNotFound       -32602
    │   ├── ResourceError          -32603  a resource cannot be read; the client gets the text
    │   ├── PromptError            -32603  a prompt cannot be made; the client gets the text
    │   ├── InternalError          -32603  carries a reference; the cause is in the log
    │   │   └── Overloaded         -32603  a limit was reached; says when to try again
    │   ├── HeaderMismatch         -32020  (2026-07-28)
    │   ├── MissingCapability      -32021  (2026-07-28)
    │   └── UnsupportedVersion     -32022  (2026-07-28)
    ├── ToolError                  a failure the model should read: an `isError` result
    ├── WaitError                  why a wait brought no value; `Failed.error` of a continuation
    │   ├── WorkRaised             ... the work raised an exception
    │   ├── WorkerLost             ... its process is gone, or whoever would have ended it
    │   ├── WaitTimedOut           ... its time ran out
    │   ├── WaitCancelled          ... it was cancelled
    │   └── CapabilityMissing      ... its client cannot be asked: a capability is missing
    ├── ConfigurationError         an option is wrong; raised at construction, never per request
    ├── ContractError              a hook returned or did what its contract forbids
    ├── IllegalTransition          a step the state does not allow
    │   └── LocalIllegalTransition ... taken by this side: a defect here
    ├── AssignUnavailable          a copied assign that is not there where no request resumes a call
    ├── ArgumentFaults             what is wrong with a tool's arguments, before the tool is known
    ├── SealError                  a sealed value that cannot be used
    │   ├── InvalidSeal            ... not ours, changed, or meant for something else
    │   │   └── ForeignSeal        ... sealed by a process with another secret
    │   └── SealExpired            ... ours, but too old
    └── StoreError
        ├── Conflict               an `expect` did not hold; nothing was written
        ├── UnknownFormat          a record was written by another release
        ├── LogTruncated           a log no longer has everything that was asked for
        └── StoreUnavailable       the engine could not be reached
            ├── StoreFull          ... or is full; nothing was written
            └── OverShare          ... or the client's share is used up; nothing was written

An error class defines its code and HTTP status; no other code builds errors by hand. `data` of an
error has one shape (docs/endpoint.md, "Errors").
The codes are those of schema/2026-07-28, "JSON-RPC error codes" and "MCP error codes".
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "ArgumentFaults",
    "AssignUnavailable",
    "BodyTimeout",
    "CapabilityMissing",
    "ConfigurationError",
    "Conflict",
    "ContractError",
    "ForeignSeal",
    "GenmcpError",
    "HeaderMismatch",
    "HttpRejected",
    "IllegalTransition",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "InvalidSeal",
    "LocalIllegalTransition",
    "LogTruncated",
    "MalformedParams",
    "McpError",
    "MethodNotFound",
    "MissingCapability",
    "NotAllowed",
    "OverShare",
    "Overloaded",
    "ParseError",
    "PromptError",
    "PromptNotFound",
    "ResourceError",
    "ResourceNotFound",
    "SealError",
    "SealExpired",
    "SessionNotFound",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TaskNotFound",
    "TooLarge",
    "ToolError",
    "ToolNotFound",
    "UnknownFormat",
    "UnsupportedVersion",
    "WaitCancelled",
    "WaitError",
    "WaitTimedOut",
    "WorkRaised",
    "WorkerLost",
]


class GenmcpError(Exception):
    """What every exception of this package derives from."""


class McpError(GenmcpError):
    """A failure that is answered as a JSON-RPC error.

    `message` and `data` go to the client as they are, so they must be safe to show.
    `status` is the HTTP status of the answer where the revision lets an error have one
    (2026-07-28, "Streamable HTTP"); `headers` are added to that answer.
    """

    code: int = -32603
    status: int = 200

    def __init__(
        self,
        message: str,
        data: Any = None,
        *,
        code: int | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        self.headers = dict(headers or {})
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class ParseError(McpError):
    """The body is not JSON."""

    code = -32700
    status = 400


class InvalidRequest(McpError):
    """The body is JSON, but not a valid message. *id*: the id of an invalid member of a batch."""

    code = -32600
    status = 400
    id: int | str | None = None


class HttpRejected(InvalidRequest):
    """The HTTP head was refused before the body was looked at."""


class NotAllowed(HttpRejected):
    """The HTTP method is not one that can be used here, or not like this."""

    status = 405

    def __init__(self, message: str, *allowed: str) -> None:
        super().__init__(message, headers={"allow": ", ".join(allowed)})


class TooLarge(InvalidRequest):
    """The body is larger than it may be."""

    status = 413


class BodyTimeout(InvalidRequest):
    """The body did not arrive in time; the connection is of no use any more."""

    status = 408

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"connection": "close"})


class SessionNotFound(InvalidRequest):
    """The session does not exist (any more): the client starts a new one.

    2025-11-25, transports, "Session Management": HTTP 404.
    """

    status = 404


class MethodNotFound(McpError):
    """The method is unknown, or the server does not offer it.

    2026-07-28, "Protocol Version Header": HTTP 404.
    """

    code = -32601
    status = 404

    def __init__(self, method: str) -> None:
        super().__init__(f"Method not found: {method}")


class InvalidParams(McpError):
    """The parameters are not what the method takes.

    Raised by a tool's `validate`, it refuses the call; the message is shown to the client.
    """

    code = -32602


class MalformedParams(InvalidParams):
    """The parameters do not have the shape the specification gives them."""

    status = 400


class ToolNotFound(InvalidParams):
    """No tool has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {name}", {"name": name})


class PromptNotFound(InvalidParams):
    """No prompt has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {name}", {"name": name})


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"Resource not found: {uri}", {"uri": uri})


class TaskNotFound(InvalidParams):
    """No task has this id, or it is somebody else's, or it is not kept any more.

    SEP-2663, "Task Update Requests" and "Task Cancellation".
    """

    def __init__(self, id: str) -> None:
        super().__init__(f"Unknown task: {id}", {"taskId": id})


class ResourceError(McpError):
    """A resource cannot be read; the text is the reason, and is sent to the client."""


class PromptError(McpError):
    """A prompt cannot be made; the text is the reason, and is sent to the client."""


class InternalError(McpError):
    """Something went wrong here; `reference` finds the cause in the log."""

    code = -32603
    status = 500

    def __init__(self, message: str = "Internal error", *, reference: str | None = None) -> None:
        self.reference = reference
        super().__init__(message, {"reference": reference} if reference else None)


class Overloaded(InternalError):
    """A limit was reached; the same request may succeed after *retry_after* seconds."""

    status = 503

    def __init__(self, message: str, *, retry_after: int = 1, status: int = 503) -> None:
        super().__init__(message)
        self.data = {"retryAfter": retry_after}
        self.headers["retry-after"] = str(retry_after)
        self.status = status


class HeaderMismatch(McpError):
    """A header is missing, malformed, or says something else than the body.

    2026-07-28, Streamable HTTP, "Server Validation".
    """

    code = -32020
    status = 400


class MissingCapability(McpError):
    """The request needs a capability its client did not declare.

    *required* has the shape of ClientCapabilities: `{"sampling": {}}`.
    """

    code = -32021
    status = 400

    def __init__(self, required: Mapping[str, Any], message: str | None = None) -> None:
        default = f"The client did not declare a capability this request needs: {_named(required)}"
        super().__init__(message or default, {"requiredCapabilities": dict(required)})


class UnsupportedVersion(McpError):
    """The protocol version asked for is not one this server speaks."""

    code = -32022
    status = 400

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"Unsupported protocol version: {requested}",
            {"supported": list(supported), "requested": requested},
        )


class ToolError(GenmcpError):
    """A tool failed in a way the model should read; its text is shown as it is."""


class WaitError(GenmcpError):
    """Why what a call waited for brought no value.

    The same on every carrier, whatever process it happened in; `str` shows only what may be
    shown. `__cause__` is the original exception where this process has it. If it leaves a hook of
    a tool, the client gets its text as an `isError` result.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()

    @property
    def fields(self) -> tuple[Any, ...]:
        """What it is made of, in the order in which it takes them."""
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitError) and (
            (type(self), self.fields) == (type(other), other.fields)
        )

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class WorkRaised(WaitError):
    """The work raised an exception of *type_name*.

    *reference* finds it in the log. *message* is its text if it was raised to be shown (ToolError,
    McpError, what a client answered), otherwise None.
    """

    __match_args__ = ("reference", "type_name", "message")

    def __init__(self, reference: str, type_name: str, message: str | None = None) -> None:
        self.reference = reference
        self.type_name = type_name
        self.message = message
        super().__init__(message or f"it failed unexpectedly (reference {reference})")


class WorkerLost(WaitError):
    """The process it ran in is gone, or nobody is left who could end it."""

    def __init__(self) -> None:
        super().__init__("it was lost: the process that worked on it is gone")


class WaitTimedOut(WaitError):
    """Its time ran out."""

    def __init__(self) -> None:
        super().__init__("it took too long")


class WaitCancelled(WaitError):
    """It was cancelled, by something else than the call that waits for it."""

    def __init__(self) -> None:
        super().__init__("it was cancelled")


class CapabilityMissing(WaitError):
    """The client lacks *capabilities* that a question needs, in the shape of ClientCapabilities.

    Raised from `continue_`, it results in -32021 on 2026-07-28, and in an `isError` result before.
    """

    __match_args__ = ("capabilities",)

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self.capabilities = dict(capabilities)
        names = _named(capabilities)
        super().__init__(f"the client did not declare a capability this needs: {names}")


def _named(capabilities: Mapping[str, Any]) -> str:
    """Return what *capabilities* are called; extensions have names of their own."""
    names = [capabilities[name] if name == "extensions" else (name,) for name in capabilities]
    return ", ".join(name for each in names for name in each)


class ConfigurationError(GenmcpError, ValueError):
    """An option is wrong. The message names the option and what it takes."""


class ContractError(GenmcpError, TypeError):
    """A hook returned, or a caller did, what the contract forbids."""


class IllegalTransition(GenmcpError):
    """A step was requested that the state does not allow."""

    fault: ClassVar[str] = "somebody"

    def __init__(self, step: object, state: object) -> None:
        self.step = step
        self.state = state
        super().__init__(f"{step} while {state}: {self.fault} took a step out of turn")


class LocalIllegalTransition(IllegalTransition):
    """This side took the step: a defect here."""

    fault = "this side"


class ArgumentFaults(GenmcpError, ValueError):
    """Arguments do not fit; `faults` says how, each a sentence that begins with its place."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class AssignUnavailable(GenmcpError, LookupError):
    """An assign that was copied from the host's request is read where no request resumes a call."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the assign {key!r} was copied from the request, and is not there when a job ends: "
            f"name it in the endpoint's keep_assigns"
        )


class SealError(GenmcpError):
    """A sealed value cannot be used."""


class InvalidSeal(SealError):
    """Not sealed here, changed since, or sealed for something or somebody else."""


class ForeignSeal(InvalidSeal):
    """Sealed with another secret: all processes that serve the same clients must share one."""


class SealExpired(SealError):
    """Sealed here, but its time has run out."""


class StoreError(GenmcpError):
    """An operation of a store failed. The base of the errors that stores raise."""


class Conflict(StoreError):
    """An `expect` did not hold; nothing was written."""


class UnknownFormat(StoreError):
    """A record was written by another release; the message names the formats, and is shown."""


class LogTruncated(StoreError):
    """Events after the requested one may have been dropped, or it is not an event of this log."""

    def __init__(self, log: str, after: str) -> None:
        self.log = log
        self.after = after
        super().__init__(f"the log {log!r} no longer has everything after {after!r}")


class StoreUnavailable(StoreError):
    """The engine could not be reached: the operation may or may not have been carried out."""


class StoreFull(StoreUnavailable):
    """The store is full; the write changed nothing."""


class OverShare(StoreUnavailable):
    """A client has used its share of the store; the message names the setting and may be shown."""
