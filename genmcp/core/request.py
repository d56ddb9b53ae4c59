"""A request as everything above the wire sees it, whatever revision it came in."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from genmcp.policy import NEVER_A_TASK, Policy
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import (
    InputResponseRequestParams,
    LoggingLevel,
    ProgressToken,
    RequestId,
    RequestParams,
    all_meta,
)
from genmcp.protocol.revisions.revision import Revision
from genmcp.wire.jsonrpc import params_of
from genmcp.wire.param_headers import HeaderRule

__all__ = ["ClientInfo", "Request", "RouteFacts"]

Arguments: TypeAlias = Any
"""The decoded arguments of a call. Their type is that of the tool, which only its author knows."""

_NO_CAPABILITIES = ClientCapabilities()


class ClientInfo(msgspec.Struct, frozen=True):
    """Who asks, by its own account: it is not verified (2026-07-28, RequestMetaObject)."""

    revision: str
    info: Implementation | None = None
    capabilities: ClientCapabilities = _NO_CAPABILITIES


class RouteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of a request depend on in the tool, resource or prompt that it names.

    headers: the arguments that HTTP headers repeat (2026-07-28, `x-mcp-header`).
    on_disconnect: what a disconnect does to a call of an earlier revision: `"finish"` (the client
        may resume the stream for the result) or `"cancel"`. From 2026-07-28 on it always cancels.
    policy: how a long-running call is handled. eager: whether the call needs a check before its
        hook runs. pending: whether all of this is only known once the route was resolved.
    """

    headers: tuple[HeaderRule, ...] = ()
    on_disconnect: Literal["finish", "cancel"] = "finish"
    policy: Policy = NEVER_A_TASK
    eager: bool = False
    pending: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request: its method, its decoded *params*, and who asks.

    `session` is the key of the legacy session the request belongs to, or None. `route` is what
    the server found for it (tools/call and the like), or None. `raw` is the JSON they came in:
    its params (msgspec.Raw), or the whole message (bytes). `arguments` is what a tool's `validate`
    made of those of a call that goes on in `continue_`; None before. `param_headers` are those
    that repeat arguments, where only a route that is still to be found tells which they are.
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
    def asks_again(self) -> bool:
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
        raw: msgspec.Raw | Mapping[str, str] | None = getattr(self.params, "arguments", None)
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
        """What progress is reported under, None if the client did not ask for any."""
        return self.params.meta.progress_token

    @property
    def log_level(self) -> LoggingLevel | None:
        """The least severe level this request wants to hear of (2026-07-28 on)."""
        return self.params.meta.log_level
