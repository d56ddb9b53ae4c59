"""What each question of a server means to the hooks of a handler, and what they answer to the wire.

Values are those of 2026-07-28, whatever way the question came.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from genmcp.client.handler import ClientHandler, Denied
from genmcp.client.hooks import Hooks
from genmcp.client.tool_schemas import reading
from genmcp.errors import ConfigurationError, ContractError, InvalidParams, MethodNotFound
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from genmcp.protocol.value import decoder_for
from genmcp.question.elicitation import HTTPS, check_url
from genmcp.question.question import Accepted, Cancelled, Declined
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp.schema.schema import Schema

__all__ = ["Answer", "Questions"]

V = TypeVar("V")

Answer = msgspec.Struct | Mapping[str, Any]
"""A result: a value of the protocol, or what a hook for any request returned."""

logger = logging.getLogger("genmcp.client")

_FORM = "handle_elicitation_create"
_URL = "handle_url_elicitation"
_SAMPLE = "handle_create_message"
_ROOTS = "handle_list_roots"


class Questions:
    """The questions that *hooks*, those of *handler*, answer.

    `capabilities`: what the client declares: what is *declared*, or what *handler* says, or what
    its hooks show. url_schemes: the URL schemes that the user may be sent to, besides https and
    http to loopback. schemas: bounds on the schemas of forms.
    """

    def __init__(
        self,
        handler: ClientHandler[Any],
        hooks: Hooks[Any],
        declared: ClientCapabilities | None = None,
        url_schemes: Collection[str] = HTTPS,
        schemas: SchemaLimits = FOREIGN_LIMITS,
    ) -> None:
        self._schemas = schemas
        self._hooks = hooks
        self._url_schemes = url_schemes
        self._warned = False
        self.capabilities = declared or handler.capabilities or _capabilities_of(handler, hooks)

    async def answer(self, method: str, params: Any) -> Answer:
        """Return what the hook for *method* answers.

        Raises:
            McpError: the question cannot be put to this client, or the hook refuses.
            ContractError: the hook returned what it must not.
            Exception: whatever else the hook raises.
        """
        declared = self.capabilities
        match method:
            case "roots/list" if declared.roots is not None:
                return ListRootsResult(_roots(await self._hooks.asked(_ROOTS)))
            case "sampling/createMessage" if declared.sampling is not None:
                return await self._sampled(params, declared.sampling)
            case "elicitation/create" if declared.elicitation is not None:
                return await self._elicited(params, declared.elicitation)
            case "roots/list" | "sampling/createMessage" | "elicitation/create":
                raise MethodNotFound(method)
            case "ping":
                return await self._mapping("handle_ping")
            case _:
                return await self._mapping("handle_request", method, params)

    async def _mapping(self, hook: str, *arguments: Any) -> Answer:
        result: dict[str, Any] = _read(
            hook, await self._hooks.asked(hook, *arguments), dict[str, Any]
        )
        return result

    async def _sampled(
        self, params: CreateMessageRequestParams, declared: SamplingCapability
    ) -> CreateMessageResult:
        """2025-11-25, client/sampling, "Tools in Sampling": an error without the capability."""
        if declared.tools is None and (params.tools is not None or params.tool_choice is not None):
            raise InvalidParams("The client did not declare sampling.tools")
        params = await self._approved(params, CreateMessageRequestParams)
        result = _read(_SAMPLE, await self._hooks.asked(_SAMPLE, params), CreateMessageResult)
        return await self._approved(result, CreateMessageResult)

    async def _approved(self, subject: V, kind: type[V]) -> V:
        agreed = await self._hooks.asked("approve", subject)
        if agreed is False:
            raise Denied("User rejected sampling request")
        return subject if agreed is True else _read("approve", agreed, kind)

    async def _elicited(
        self, params: ElicitRequestParams, declared: ElicitationCapability
    ) -> ElicitResult:
        """2025-11-25, client/elicitation, "Error Handling": -32602 for a mode not declared."""
        mode = "form" if params.url is None else "url"
        if not (declared.takes_forms if params.url is None else declared.takes_urls):
            raise InvalidParams(f"The client did not declare elicitation.{mode}")
        if params.url is not None:
            try:
                check_url(params.url, self._url_schemes)
            except ConfigurationError as error:
                logger.warning(
                    "%r: a server asks for a URL that is refused: %s", self._hooks, error
                )
                raise InvalidParams(f"url: {error}") from None
            said = await self._sent_to(params.message, params.url)
            return ElicitResult(said.action)
        try:
            form = await self._form(params.requested_schema or {})
        except ConfigurationError as error:
            raise InvalidParams(str(error)) from None
        said = _said(_FORM, await self._hooks.asked(_FORM, params.message, form.document))
        if said.action != "accept":
            return ElicitResult(said.action)
        content = form.fill(dict(said.content or {}))
        if faults := form.check(content):
            raise ContractError("\n".join([f"{_FORM} accepted with what does not fit:", *faults]))
        return ElicitResult("accept", content)

    async def _form(self, schema: Mapping[str, Any]) -> Schema:
        read = partial(Schema, schema, origin="requestedSchema", limits=self._schemas)
        return await reading([msgspec.json.encode(schema)], read)

    async def _sent_to(self, message: str, url: str) -> ElicitResult:
        if self._hooks.has(_URL) or not self._hooks.has(_FORM):
            return _said(_URL, await self._hooks.asked(_URL, message, url))
        if not self._warned:
            self._warned = True
            logger.warning("%r has no %s: %s is asked about URLs", self._hooks, _URL, _FORM)
        return _said(_FORM, await self._hooks.asked(_FORM, message, {"mode": "url", "url": url}))


def _capabilities_of(handler: ClientHandler[Any], hooks: Hooks[Any]) -> ClientCapabilities:
    roots: Mapping[str, Any] | None = {} if hooks.has(_ROOTS) else None
    sampling = elicitation = None
    if hooks.has(_SAMPLE):
        sampling = SamplingCapability(
            context={} if handler.sampling_context else None,
            tools={} if handler.sampling_tools else None,
        )
    form, url = hooks.has(_FORM), hooks.has(_URL)
    if form or url:
        elicitation = ElicitationCapability(form={} if form else None, url={} if url else None)
    return ClientCapabilities(roots=roots, sampling=sampling, elicitation=elicitation)


def _read(hook: str, value: Any, kind: Any) -> Any:
    """Return what *hook* has returned as a *kind*.

    Raises:
        ContractError: it is none.
    """
    try:
        return decoder_for(kind).decode(msgspec.json.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ContractError(f"{hook} returned {type(value).__name__}: {error}") from error


def _said(hook: str, value: Any) -> ElicitResult:
    match value:
        case Accepted(content):
            value = {"action": "accept", "content": content}
        case Declined():
            return ElicitResult("decline")
        case Cancelled():
            return ElicitResult("cancel")
    try:
        said: ElicitResult = _read(hook, value, ElicitResult)
    except ContractError as error:
        told = "return Accepted({...}), Declined() or Cancelled()"
        raise ContractError(f"{error}; {told}") from error
    return said


def _roots(given: Any) -> Sequence[Root]:
    """Return *given* as roots, which are `file://` URIs: 2026-07-28, client/roots, "Root"."""
    if not isinstance(given, list):
        raise ContractError(f"{_ROOTS} returned {type(given).__name__}: it must return a list")
    roots = [
        Root(each.as_uri(), each.name) if isinstance(each, Path) else _read(_ROOTS, each, Root)
        for each in given
    ]
    for root in roots:
        if not root.uri.startswith("file://"):
            raise ContractError(f"{_ROOTS} returned {root.uri!r}: a root is a file:// URI")
    return roots
