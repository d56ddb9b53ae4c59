"""A request in the terms of 2026-07-28, for every revision.

The module also has the client of a request, the policy for a long-running call, and the decoding
of params.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final, Generic, Literal, NoReturn, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.core.waiting import OnLost
from genmcp.errors import ConfigurationError, MalformedParams
from genmcp.faults import decoding_fault, error_data
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    CALLER,
    IDEMPOTENCY_KEY,
    InputResponseRequestParams,
    LoggingLevel,
    NotificationParams,
    ProgressToken,
    RequestId,
    RequestMeta,
    RequestParams,
    all_meta,
)
from genmcp.protocol.prompts import CompleteRequestParams, PromptReference
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.revisions.v2025_11_25 import SubscribeRequestParams, UnsubscribeRequestParams
from genmcp.protocol.tools import CallToolRequestParams, ToolAnnotations
from genmcp.protocol.value import decoder_for
from genmcp.wire.jsonrpc import Message, params_of
from genmcp.wire.param_headers import HeaderRule

A = TypeVar("A", default=dict[str, Any])


T = TypeVar("T", default=dict[str, str])


K = TypeVar("K", default=str)


RESULT_TOOL: Final = "get_call_result"
"""The tool by which a client without tasks gets the result of a call that has become a task."""


HOLD: Final = 50.0
"""Seconds for which a call is held if its client can fetch the result later.

Many clients time out after 60 seconds, and would lose the result.
"""


TaskUse = Literal["never", "auto", "always"]


_TIMES = {"promote_after", "result_ttl", "max_hold"}


_FLAGS = {"requires_tasks", "single_use"}


_NAMES = {"queue": "a queue", "idempotency_key": "an argument"}


_CHOICES: dict[str, tuple[Any, ...]] = {
    "task": ("never", "auto", "always"),
    "on_worker_lost": ("rerun", "fail", None),
}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How long-running calls of one route are handled; times in seconds. See `Tool`.

    auto_hold: whether `max_hold` is `HOLD` if the result tool is offered, and None otherwise.
    idempotency_key: the argument that is the idempotency key of a call, if any.
    apps_only: whether the tool is for the pages of apps, and not for models.

    Raises:
        ConfigurationError: a value is invalid.
    """

    task: TaskUse = "auto"
    requires_tasks: bool = False
    promote_after: float = 10.0
    result_ttl: float = 86400.0
    max_hold: float | None = None
    auto_hold: bool = False
    single_use: bool = False
    # The default for prompts and resources, which have no jobs. For a tool, `of` always passes a
    # value: `Tool.on_worker_lost`, or if that is None a choice by the tool's annotations.
    on_worker_lost: OnLost = "fail"
    queue: str | None = None
    idempotency_key: str | None = None
    apps_only: bool = False

    @property
    def eager(self) -> bool:
        """Whether a call is checked, or becomes a task, before the hook runs."""
        return self.task == "always" or self.requires_tasks or self.idempotency_key is not None

    @classmethod
    def of(cls, owner: str, provider: object, annotations: ToolAnnotations | None) -> "Policy":
        """Return the policy of *provider*, a tool.

        Raises:
            ConfigurationError: one is invalid; the message names *owner* and the attribute.
        """
        values = {name: getattr(provider, name) for name in _TIMES | _CHOICES.keys() | _FLAGS}
        if values["max_hold"] == "auto":
            values["max_hold"], values["auto_hold"] = None, True
        for name, allowed in _CHOICES.items():
            if values[name] not in allowed:
                taken = " or ".join(map(repr, allowed))
                _reject(owner, name, taken, values[name])
        for name in _TIMES:
            value = values[name]
            if value is None and name == "max_hold":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                _reject(owner, name, "a positive number of seconds", value)
        if values["task"] == "never" and values["requires_tasks"]:
            raise ConfigurationError(f"{owner}: task = 'never', and requires_tasks: which?")
        for name, what in _NAMES.items():
            values[name] = value = getattr(provider, name, None)
            if value is not None and (not isinstance(value, str) or not value):
                _reject(owner, name, f"the name of {what}", value)
        if values["on_worker_lost"] is None:
            values["on_worker_lost"] = "rerun" if _may_rerun(annotations) else "fail"
        return cls(**values)


def _reject(owner: str, name: str, expected: str, found: object) -> NoReturn:
    text = f"{owner}.{name} must be {expected}, not {found!r}"
    if not isinstance(found, str | int | float | None):
        # `self.queue` and `self.task` are everyday words; this one was meant for the tool itself.
        text += f": {name} is an option of tools; give an attribute of your own another name"
    raise ConfigurationError(text)


NEVER_A_TASK: Final = Policy(task="never")
"""The policy of prompts and resources."""


def _may_rerun(annotations: ToolAnnotations | None) -> bool:
    """Whether the annotations of a tool permit to repeat its work."""
    return annotations is not None and bool(
        annotations.idempotent_hint or annotations.read_only_hint
    )


_NO_CAPABILITIES = ClientCapabilities()


class ClientInfo(msgspec.Struct, frozen=True):
    """The client as it describes itself; not verified (2026-07-28, RequestMetaObject)."""

    revision: str
    info: Implementation | None = None
    capabilities: ClientCapabilities = _NO_CAPABILITIES


#: The decoded arguments: only the component knows their type, and its hooks must type-check.
Arguments: TypeAlias = Any


class RouteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a tool, resource or prompt that the rules of a request depend on.

    header_rules: the arguments that HTTP headers repeat (2026-07-28, `x-mcp-header`).
    on_disconnect: the effect of a disconnect on a call of an earlier revision: `"finish"` (the
    client may resume the stream for the result) or `"cancel"`. From 2026-07-28 on it always
    cancels. policy: how a long-running call is handled. eager: whether the call needs a check
    before its hook runs. pending: whether all of this is only known once the route was resolved.
    scopes: the scopes that an access token must have, besides those of the endpoint.
    """

    header_rules: tuple[HeaderRule, ...] = ()
    on_disconnect: Literal["finish", "cancel"] = "finish"
    policy: Policy = NEVER_A_TASK
    eager: bool = False
    pending: bool = False
    scopes: tuple[str, ...] = ()


def cancels_on_disconnect(route: RouteFacts | None) -> bool:
    """Return whether a disconnect cancels the calls of *route* on every revision.

    A *route* of None is a method without a component, whose calls run on before 2026-07-28.
    """
    return route is not None and route.on_disconnect == "cancel"


# Frozen, since a request is shared by the transport, the hooks and the telemetry, on two threads
# for a `def` hook. Compared by identity: two requests of one client may be equal in all members,
# and are still two calls.


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request: its method, its decoded *params*, and its client.

    Attributes:
        session: the key of the legacy session that the request belongs to, or None.
        route: the properties of the tool, prompt or resource that it names, or None.
        raw: the JSON it was read from: its params (msgspec.Raw), or the whole message (bytes).
        arguments: the decoded and validated arguments of a tool or prompt, or the key of a
            resource; None until the component has decoded them, before its first hook runs.
        param_headers: the headers that repeat arguments, if the route is pending: only the route
            that it is resolved to knows which arguments they repeat.
    """

    id: RequestId
    method: str
    params: RequestParams
    revision: Revision
    client: ClientInfo
    session: str | None = None
    route: RouteFacts | None = None
    raw: bytes | msgspec.Raw = b""
    arguments: Arguments = None
    param_headers: Mapping[bytes, bytes] | None = None

    @property
    def answers_by_retry(self) -> bool:
        """Whether its client answers a question by sending its request again (2026-07-28 on).

        Before, the server sends the question as a request of its own.
        """
        return self.revision.modern

    @property
    def meta(self) -> Mapping[str, Any]:
        """Every member of the request's `_meta`, those of others among them."""
        params = params_of(self.raw) if isinstance(self.raw, bytes) else self.raw
        return all_meta(params) if params else {}

    @property
    def policy(self) -> Policy:
        """How a long-running call is handled, as far as the route is known."""
        return NEVER_A_TASK if self.route is None else self.route.policy

    @property
    def key(self) -> str:
        """The name or URI that the request names; "" if its method has none."""
        return str(getattr(self.params, "name", None) or getattr(self.params, "uri", ""))

    @property
    def raw_arguments(self) -> msgspec.Raw | Mapping[str, str] | None:
        """The arguments of a tool or prompt as they came, which a retry repeats; else None."""
        params = self.params
        if isinstance(params, CallToolRequestParams):
            return params.given
        raw: Mapping[str, str] | None = getattr(params, "arguments", None)
        return raw

    @property
    def request_state(self) -> str | None:
        """The `requestState` that the client sends back with its answers, if any."""
        params = self.params
        return params.request_state if isinstance(params, InputResponseRequestParams) else None

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """The answers to questions that the client sends along."""
        params = self.params
        return (isinstance(params, InputResponseRequestParams) and params.input_responses) or {}

    @property
    def progress_token(self) -> ProgressToken | None:
        """The token for progress notifications; None if the client wants none."""
        return self.params.meta.progress_token

    @property
    def log_level(self) -> LoggingLevel | None:
        """The minimum level of its log messages (2026-07-28 on)."""
        return self.params.meta.log_level


class ToolRequest(Request, Generic[A], frozen=True, kw_only=True, eq=False):
    """The call of a tool: `request` in its hooks, and `channel.request` in all of them.

    Attributes:
        name: the name of the tool.
        arguments: the validated arguments, as the type of the tool.
        meta: the `_meta` of the request.
        client: the client, as it describes itself.
        progress_token: the token for progress notifications; None if the client wants none.
    """

    arguments: A = None  # type: ignore[assignment]  # set before any hook runs

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.key

    def replace(self, arguments: A) -> "ToolRequest[A]":
        """Return the same request with other *arguments*, for `validate` to return."""
        return msgspec.structs.replace(self, arguments=arguments)


class PromptRequest(Request, Generic[T], frozen=True, kw_only=True, eq=False):
    """The request for a prompt: `request` in its hooks, and `channel.request` in all of them.

    Attributes:
        name: the name of the prompt.
        arguments: the decoded arguments, as the type of the prompt.
        meta, client, progress_token: as of a `ToolRequest`.
    """

    arguments: T = None  # type: ignore[assignment]  # set before any hook runs

    @property
    def name(self) -> str:
        """The name of the prompt."""
        return self.key


class ResourceRequest(Request, Generic[K], frozen=True, kw_only=True, eq=False):
    """The request for a resource: `channel.request` in its hooks.

    Attributes:
        uri: the URI of the resource.
        arguments: the key of the resource, as `read` gets it: the URI, or the result of
            `parse_uri`.
        meta, client, progress_token: as of a `ToolRequest`.
    """

    arguments: K = None  # type: ignore[assignment]  # set before any hook runs

    @property
    def uri(self) -> str:
        """The URI of the resource."""
        return self.key


REQUEST_TYPES: Final[Mapping[str, type[Request]]] = {
    "tools/call": ToolRequest,
    "prompts/get": PromptRequest,
    "resources/read": ResourceRequest,
}
"""The types of the requests that have hooks, by method; those of all others are a `Request`."""


class _CancelledParams(NotificationParams):
    """Cancellation in 2025-11-25, where `requestId` is optional because of experimental tasks."""

    request_id: RequestId | None = None


P = TypeVar("P")


_CANCELLED: Final = "notifications/cancelled"


_object_of_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


_any_object: Final = decoder_for(dict[str, Any])


_meta: Final = decoder_for(RequestMeta)


# An idempotency key, and whose it is, decide which calls run: they must not be dropped silently.
_DROPPED: Final = frozenset(RequestMeta.__struct_encode_fields__) - {IDEMPOTENCY_KEY, CALLER}


def decode_params(decoder: msgspec.json.Decoder[P], raw: bytes | msgspec.Raw) -> P:
    """Decode params; absent params are an empty object.

    Raises:
        MalformedParams: *decoder* does not accept them.
    """
    try:
        return decoder.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        data = error_data([decoding_fault(str(error))])
        raise MalformedParams(f"Invalid params: {error}", data) from None


def session_params(method: Method, raw: msgspec.Raw) -> tuple[RequestParams, msgspec.Raw]:
    """Decode the params of a request within a legacy session.

    Unusable members of `_meta` are left out: these revisions define only `progressToken`, and
    "implementations MUST NOT make assumptions about values" of other keys (2025-11-25, basic,
    "_meta"), which include those that only 2026-07-28 defines.

    Returns:
        The params, and their JSON without the members that were left out.

    Raises:
        MalformedParams: *method* does not accept them.
    """
    # Valid params are decoded once; only a failure pays for a look at the members of `_meta`.
    try:
        return decode_params(method.params_decoder, raw), raw
    except MalformedParams:
        usable = _with_usable_meta(raw)
        if usable is None:
            raise
        return decode_params(method.params_decoder, usable), usable


def notification_params(
    revision: Revision, message: Message
) -> NotificationParams | Mapping[str, Any]:
    """Decode the params of a notification.

    For a notification that *revision* does not define, only the type is checked.

    Raises:
        MalformedParams: the params are not valid for the notification.
    """
    name = message.method or ""
    method = revision.methods.get(name)
    decoder = _any_object
    if name == _CANCELLED and not revision.modern:
        decoder = decoder_for(_CancelledParams)
    elif method is not None and method.is_notification:
        decoder = method.params_decoder
    params: NotificationParams | Mapping[str, Any] = decode_params(decoder, message.params)
    return params


def _with_usable_meta(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Return params without the unusable members of `_meta`; None if they have no `_meta`."""
    try:
        members = _object_of_raw(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    given = members.pop("_meta", None)
    if given is None:
        return None
    try:
        meta = _object_of_raw(given)
    except msgspec.DecodeError:
        meta = {}  # `_meta` is not an object
    usable = {key: value for key, value in meta.items() if _is_usable(key, value)}
    members["_meta"] = msgspec.Raw(msgspec.json.encode(usable))
    return msgspec.Raw(msgspec.json.encode(members))


def _is_usable(key: str, value: msgspec.Raw) -> bool:
    if key not in _DROPPED:
        return True
    try:
        _meta.decode(msgspec.json.encode({key: value}))
    except msgspec.DecodeError:
        return False
    return True


MAX_NAME_BYTES: Final = 2048
"""The maximum size of a URI, or of the name of a tool, prompt, resource template or task, that a
client may send."""


def check_length(name: str) -> None:
    """Check that a URI or *name* has at most `MAX_NAME_BYTES` bytes in UTF-8.

    Names and URIs are matched with templates, resolved as paths, stored with subscriptions and
    repeated in errors, so that a long one costs far more than its transfer.

    Raises:
        MalformedParams: it has more.
    """
    if len(name.encode()) > MAX_NAME_BYTES:
        raise MalformedParams(f"Invalid params: a URI or name has more than {MAX_NAME_BYTES} bytes")


def check_names(params: RequestParams) -> None:
    """Check the URIs and names in the *params* of methods that are not routed by a name.

    Raises:
        MalformedParams: one has more than `MAX_NAME_BYTES` bytes.
    """
    match params:
        case CompleteRequestParams(ref=ref, argument=argument):
            check_length(ref.name if isinstance(ref, PromptReference) else ref.uri)
            check_length(argument.name)
        case SubscribeRequestParams(uri=uri) | UnsubscribeRequestParams(uri=uri):
            check_length(uri)


def call_of(request: Request, name: str, arguments: msgspec.Raw) -> Request:
    """Return *request*, a call of a tool, as one of the tool *name* with *arguments*.

    The params and the JSON are replaced, so that a record of the call is one of that tool. The
    route stays, without the headers that repeat arguments of the received call.
    """
    raw = request.raw
    members = _object_of_raw(params_of(raw) if isinstance(raw, bytes) else raw)
    members["name"] = msgspec.Raw(msgspec.json.encode(name))
    members["arguments"] = arguments
    return msgspec.structs.replace(
        request,
        params=msgspec.structs.replace(request.params, name=name, arguments=arguments),
        raw=msgspec.Raw(msgspec.json.encode(members)),
        param_headers=None,
    )
