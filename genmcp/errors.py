"""The exceptions of genmcp, with their JSON-RPC codes and HTTP statuses.

    GenmcpError
    ├── McpError               sent to the client as a JSON-RPC error, with its code:
    │     -32700               ParseError
    │     -32600               InvalidRequest: HttpRejected (NotAllowed), TooLarge, BodyTimeout,
    │                            SessionNotFound, InsufficientScope
    │     -32601               MethodNotFound
    │     -32602               InvalidParams: MalformedParams, InvalidArguments, ToolNotFound,
    │                            PromptNotFound, ResourceNotFound, TaskNotFound
    │     -32603               ResourceError, PromptError, InternalError: Overloaded
    │     -32020 to -32022     HeaderMismatch, MissingCapability, UnsupportedVersion
    ├── ToolError              raised by a tool: the model gets its text in an `isError` result
    ├── WaitError              WorkRaised, WorkerLost, WaitTimedOut (JobExpired), WaitCancelled,
    │                            CapabilityMissing
    ├── ConfigurationError     an option is invalid; raised at construction, never per request
    ├── ContractError          a hook returned or did something that its contract forbids
    ├── IllegalTransition      LocalIllegalTransition
    ├── AssignUnavailable      a copied assign is read while no request resumes the call
    ├── ArgumentFaults         arguments are invalid; raised by a schema, which has no tool name
    ├── SealError              InvalidSeal (ForeignSeal), SealExpired
    ├── StoreError             Conflict, UnknownFormat, LogTruncated,
    │                            StoreUnavailable (StoreFull, OverShare)
    ├── InvalidToken, AuthorizationUnavailable (genmcp.auth)
    ├── ClientError            raised by a client (genmcp.client.errors)
    └── CompositeError         raised by a hub or registry (genmcp.composite.errors)

The codes are those of schema/2026-07-28, "JSON-RPC error codes" and "MCP error codes". Each class
defines its code and status; the shape of `data` is in docs/how-to/errors.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from genmcp.faults import error_data


class GenmcpError(Exception):
    """The base class of all exceptions of this package."""


class McpError(GenmcpError):
    """A failure that is sent to the client as a JSON-RPC error. Hooks may raise it.

    Cure: read `code` and `message`; the class that was raised says more.

    Args:
        message: the error message. The client gets it unchanged, so it must not contain secrets.
        data: further details for the client, JSON.
        code: the JSON-RPC code. Default: that of the class.
        status: the HTTP status, where the revision has one for errors (2026-07-28, "Streamable
            HTTP"). Default: that of the class.
        headers: HTTP headers to add to the response.
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
    """The body is not JSON. The client must send valid JSON.

    Cure: look for a proxy or a client that changes the body.
    """

    code = -32700
    status = 400


class InvalidRequest(McpError):
    """The body is JSON, but not a valid JSON-RPC message.

    Cure: send one JSON-RPC 2.0 request, notification or response, or a batch of them.

    Attributes:
        id: the id of an invalid member of a batch, None if it is unknown.
    """

    code = -32600
    status = 400
    id: int | str | None = None


class HttpRejected(InvalidRequest):
    """The HTTP headers were rejected, before the body was read.

    Cure: the message names the header; most often it is `Accept`, `Content-Type`, `Origin` or
    `Host`. The last two are allowed by `Security`.
    """


class NotAllowed(HttpRejected):
    """The HTTP method is not allowed here. The header `Allow` lists the allowed methods.

    Cure: use a method that the header `Allow` lists; MCP clients POST to this URL.
    """

    status = 405

    def __init__(self, message: str, *allowed: str) -> None:
        super().__init__(message, headers={"allow": ", ".join(allowed)})


class TooLarge(InvalidRequest):
    """The body exceeds `Limits.max_body_bytes`.

    Cure: send less, such as a URI of the data, or raise the limit.
    """

    status = 413


class BodyTimeout(InvalidRequest):
    """The body did not arrive within `Limits.body_timeout`. The connection is closed.

    Cure: raise the limit for slow networks, and look for a proxy that holds bodies back.
    """

    status = 408

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"connection": "close"})


class SessionNotFound(InvalidRequest):
    """The session is unknown, has ended or has expired. The client must open a new one.

    2025-11-25, transports, "Session Management": HTTP 404.

    Cure: most clients open a new session by themselves. If it occurs after each restart or with
    several workers, set the same `GENMCP_SECRET` for all processes; raise `Limits.session_ttl` if
    sessions expire.
    """

    status = 404


class InsufficientScope(McpError):
    """The access token lacks scopes. The client gets HTTP 403, and may ask its user for them.

    A hook raises it for a need that it finds in the arguments:
    `raise InsufficientScope("parts:bulk")`.

    Cure: the client asks its user for the scopes in `data`; grant them at the authorization server.

    Args:
        scopes: the scopes that are needed, also those that were granted.
    """

    code = -32600
    status = 403

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes
        needed = " ".join(scopes)
        super().__init__(f"The access token lacks a scope; needed: {needed}", {"scopes": [*scopes]})


class MethodNotFound(McpError):
    """The method is unknown, or not offered by the server (2026-07-28: HTTP 404).

    Cure: check the spelling; the server may lack the capability, or the method may be of an
    extension that it does not have.
    """

    code = -32601
    status = 404

    def __init__(self, method: str) -> None:
        # A response repeats the name twice; unlike other names, it has no limit of its own.
        name = method if len(method) <= 200 else f"{method[:200]}..."
        super().__init__(f"Method not found: {name}", {"method": name})


class InvalidParams(McpError):
    """The params of a request are invalid.

    Raised from the `validate` of a tool, it rejects the call, and the client gets the message.

    Cure: the message names the fault.
    """

    code = -32602


class MalformedParams(InvalidParams):
    """The params do not conform to the schema of the specification; no handler was called.

    Cure: the message names the member; compare it with the specification.
    """

    status = 400


class InvalidArguments(InvalidParams):
    """Arguments of a tool call that the input schema or `validate` rejects.

    The client gets an `isError` result, which a model can read and act on (2025-11-25, tools,
    "Error Handling", SEP-1303; earlier revisions permit it). The result has `data` in its `_meta`.

    Cure: call again with arguments that the input schema accepts; each fault says what was
    expected. A model usually does so by itself.
    """

    def __init__(self, tool: str, faults: Sequence[str], data: Any = None) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "\n".join([f"Invalid arguments for tool {tool}:", *(f"- {fault}" for fault in faults)]),
            error_data(faults, name=tool) if data is None else data,
        )


class ToolNotFound(InvalidParams):
    """No tool has this name, or it is not visible to the client.

    Cure: list the tools again: it may have been removed, or need a scope that the token lacks.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {name}", {"name": name})


class PromptNotFound(InvalidParams):
    """No prompt has this name, or it is not visible to the client.

    Cure: list the prompts again: it may have been removed, or need a scope that the token lacks.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {name}", {"name": name})


class ResourceNotFound(InvalidParams):
    """No resource has this URI, or it is not visible to the client.

    Cure: list resources and templates again; a resource function that returns None is not found,
    either.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"Resource not found: {uri}", {"uri": uri})


class TaskNotFound(InvalidParams):
    """The task id is unknown: it never existed, has expired, or belongs to another client.

    SEP-2663, "Task Update Requests" and "Task Cancellation".

    Cure: use the id with the principal that created it, and in time: `Tool.result_ttl`. Several
    processes need one `GENMCP_STORE`.
    """

    def __init__(self, id: str) -> None:
        super().__init__(f"Unknown task: {id}", {"taskId": id})


class ResourceError(McpError):
    """A resource cannot be read. Raise it from `read`; the client gets the text.

    Cure: the text is the server's own; act on it.
    """


class PromptError(McpError):
    """A prompt cannot be created. Raise it from `get`; the client gets the text.

    Cure: the text is the server's own; act on it.
    """


class InternalError(McpError):
    """An unexpected failure. The client gets *reference*, which identifies the log record.

    Cure: find the log record with the reference: it has the traceback. Raise `ToolError` for
    failures that the model should read.
    """

    code = -32603
    status = 500

    def __init__(self, message: str = "Internal error", *, reference: str | None = None) -> None:
        self.reference = reference
        super().__init__(message, {"reference": reference} if reference else None)


class Overloaded(InternalError):
    """A limit was reached. The message names the setting.

    Cure: try again after `retryAfter` seconds; if it is frequent, raise the setting or add
    processes.

    Args:
        message: the error message.
        retry_after: seconds after which the same request may succeed, default 1.
        status: the HTTP status, default 503.
    """

    status = 503

    def __init__(self, message: str, *, retry_after: int = 1, status: int = 503) -> None:
        super().__init__(message)
        self.data = {"retryAfter": retry_after}
        self.headers["retry-after"] = str(retry_after)
        self.status = status


class HeaderMismatch(McpError):
    """A header is missing or malformed, or contradicts the body.

    2026-07-28, Streamable HTTP, "Server Validation".

    Cure: send `MCP-Protocol-Version`, `Mcp-Method` and `Mcp-Name` as the body has them; look for a
    proxy that changes headers.
    """

    code = -32020
    status = 400


class MissingCapability(McpError):
    """The request requires a capability that the client did not declare.

    Cure: use a client that has the capability, or declare it: `handler=` of `Client` does so by its
    methods.

    Args:
        required: the missing capabilities, in the shape of ClientCapabilities: `{"sampling": {}}`.
        message: the error message. Default: names the capabilities.
    """

    code = -32021
    status = 400

    def __init__(self, required: Mapping[str, Any], message: str | None = None) -> None:
        default = f"The client did not declare a capability this request needs: {_named(required)}"
        super().__init__(message or default, {"requiredCapabilities": dict(required)})


class UnsupportedVersion(McpError):
    """The requested protocol version is not supported. `data` lists the supported versions.

    Cure: use one of the supported versions; clients of genmcp negotiate it.
    """

    code = -32022
    status = 400

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"Unsupported protocol version: {requested}",
            {"supported": list(supported), "requested": requested},
        )


class ToolError(GenmcpError):
    """A failure of a tool that the model should read: the text of an `isError` result.

    Cure: the text is for the model, which corrects its arguments or tells its user.

    Args:
        message: the text.
        retry: whether a call with an idempotency key runs again if its client sends it again.
            Otherwise the client gets the same error. Default False.
    """

    retry: bool = False  # also for a subclass whose constructor does not call this one

    def __init__(self, message: object = "", *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class WaitError(GenmcpError):
    """The reason why the wait of a continuation failed: the `error` of `Failed`.

    Equal errors compare equal in every process. The text is safe for clients. `__cause__` is the
    original exception if it was raised in this process. If a hook of a tool raises this error, the
    client gets its text as an `isError` result.

    Cure: match the subclass in a step or in `continue_`, where the call may still succeed.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _text: ClassVar[str] = "it failed"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self._text)

    @property
    def fields(self) -> tuple[Any, ...]:
        """The arguments of the constructor, in their order."""
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitError) and (
            (type(self), self.fields) == (type(other), other.fields)
        )

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class WorkRaised(WaitError):
    """The work raised an exception.

    Cure: find the log record with the reference; let the job raise `ToolError` if the client should
    read the text.

    Args:
        reference: identifies the log record with the traceback.
        type_name: the name of the exception type.
        message: the text of the exception, if that may be shown (ToolError, McpError, an error of
            the client); otherwise None.
    """

    __match_args__ = ("reference", "type_name", "message")

    def __init__(self, reference: str, type_name: str, message: str | None = None) -> None:
        self.reference = reference
        self.type_name = type_name
        self.message = message
        super().__init__(message or f"it failed unexpectedly (reference {reference})")


class WorkerLost(WaitError):
    """The process that did the work no longer exists. Whether the work was done is unknown.

    Cure: set `on_worker_lost="rerun"` for work that may be done twice, and save its progress by
    `run.save`.
    """

    _text = "it was lost: the process that worked on it is gone"


class WaitTimedOut(WaitError):
    """The timeout of the wait expired.

    Cure: raise the `timeout` of the wait, or answer the failure in a step.
    """

    _text = "it took too long"


class JobExpired(WaitTimedOut):
    """The job was not started within its `expires`.

    Cure: raise `expires`, or start more workers for the queue.
    """

    _text = "it was not started in time"


class WaitCancelled(WaitError):
    """The work was cancelled, though the call that waits for it was not.

    Cure: look for `genmcp jobs cancel`, or an operator of the external queue.
    """

    _text = "it was cancelled"


class CapabilityMissing(WaitError):
    """The client lacks a capability that a question needs.

    Raised from `continue_`, it results in -32021 on 2026-07-28, and in an `isError` result before.

    Cure: use another client, or return a result that needs no question.

    Args:
        capabilities: the missing capabilities, in the shape of ClientCapabilities.
    """

    __match_args__ = ("capabilities",)

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self.capabilities = dict(capabilities)
        names = _named(capabilities)
        super().__init__(f"the client did not declare a capability this needs: {names}")


def _named(capabilities: Mapping[str, Any]) -> str:
    """Return the names of *capabilities*; extensions by their own names."""
    names = [capabilities[name] if name == "extensions" else (name,) for name in capabilities]
    return ", ".join(name for each in names for name in each)


class ConfigurationError(GenmcpError, ValueError):
    """An option is invalid. The message names the option and the allowed values.

    Cure: write one of the allowed values.
    """


class ContractError(GenmcpError, TypeError):
    """A hook returned, or a caller did, something that the contract of the method forbids.

    Cure: change the hook; the message names it and what is allowed.
    """


class IllegalTransition(GenmcpError):
    """A state machine got an event that its state does not allow.

    Cure: the message names the side whose defect it is; report it there.
    """

    culprit: ClassVar[str] = "an unknown side"

    def __init__(self, step: object, state: object) -> None:
        self.step = step
        self.state = state
        super().__init__(f"{step} is not allowed in state {state}; caused by {self.culprit}")


class LocalIllegalTransition(IllegalTransition):
    """The event came from this process, not from the peer: a defect in genmcp.

    Cure: report it with the traceback.
    """

    culprit = "this side"


class ArgumentFaults(GenmcpError, ValueError):
    """Arguments are invalid. *faults* has one sentence for each fault (see `genmcp.faults`).

    Cure: change the arguments; each fault says what was expected.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class AssignUnavailable(GenmcpError, LookupError):
    """An assign that was copied from the host's request is not available.

    When a job ends, its call is resumed without a request, in any process. Then copied assigns are
    missing, except those listed in `Endpoint(keep_assigns=...)`, which are stored with the call.

    Cure: name the key in `keep_assigns`, or read it before the wait.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the assign {key!r} was copied from the request, and is not there when a job ends: "
            f"name it in the endpoint's keep_assigns"
        )


class SealError(GenmcpError):
    """The base class of errors that opening a sealed value raises.

    Cure: match its subclasses.
    """


class InvalidSeal(SealError):
    """The value is forged, was modified, or was sealed for another purpose or principal.

    Cure: begin again without the value: list from the first page, or call the tool again.
    """


class ForeignSeal(InvalidSeal):
    """The value was sealed with another secret: servers of the same clients must share one.

    Cure: set the same `GENMCP_SECRET` for all processes, and keep the old secret second in the list
    when it changes.
    """


class SealExpired(SealError):
    """The value was sealed here, but has expired.

    Cure: begin again without the value.
    """


class StoreError(GenmcpError):
    """The base class of errors that operations of a store raise.

    Cure: match its subclasses.
    """


class Conflict(StoreError):
    """An `expect` did not hold: another process has changed the entry. Nothing was written.

    Cure: read the entry again, and repeat the change.
    """


class UnknownFormat(StoreError):
    """A record was written by an incompatible release. The message names the formats.

    Cure: let all processes of a store run releases that read the format: upgrade them, or end the
    newer ones.
    """


class LogTruncated(StoreError):
    """Events of *log* after the event *after* may have been dropped. A reader would miss events.

    Cure: read the state again, and follow the log from there. `Limits.max_replay_events` and
    `replay_ttl` keep more.
    """

    def __init__(self, log: str, after: str) -> None:
        self.log = log
        self.after = after
        super().__init__(f"the log {log!r} no longer has everything after {after!r}")


class StoreUnavailable(StoreError):
    """The store's database or server cannot be reached. The operation may have succeeded.

    Cure: look at the server of the store, and run `genmcp store check`; requests are served again
    when it is back.
    """


class StoreFull(StoreUnavailable):
    """The store is full. Nothing was written.

    Cure: raise `max_bytes` of the store, or shorten `result_ttl` and `retention`; `genmcp store
    stats` shows who fills it.
    """


class OverShare(StoreUnavailable):
    """The client's share of the store, or its number of open tasks, is used up.

    Cure: the client waits until its tasks end; raise `JobOptions.tasks_of_client` if it needs more.
    """
