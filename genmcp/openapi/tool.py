"""A tool that sends its arguments to an HTTP API, or to an ASGI application of this process."""

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import aclosing, suppress
from contextvars import ContextVar
from functools import cached_property
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final

import httpx
import msgspec
from starlette.authentication import AuthCredentials

from genmcp._schema.schema import Schema
from genmcp.channel import Channel
from genmcp.content import result
from genmcp.core.request import ToolRequest
from genmcp.errors import ToolError
from genmcp.openapi.request import OperationRequest
from genmcp.protocol.tools import CallToolResult
from genmcp.tools import Tool

logger = logging.getLogger("genmcp")

# Bytes of a response, decompressed, and characters of the text of an error.
_MAX_RESPONSE: Final = 4 * 1024 * 1024
_MAX_ERROR: Final = 16 * 1024

_PASSED_ON: Final = (b"authorization", b"host")
_channel: Final = ContextVar[Channel]("channel")
# No domain may set cookies in a client: those of one caller must not reach another.
_SETS_NO_COOKIES: Final = DefaultCookiePolicy(allowed_domains=[])

_decode: Final = msgspec.json.Decoder().decode


def in_process_client(app: Any) -> httpx.AsyncClient:
    """Return a client of an ASGI *app* of this process, which acts for the caller of each tool.

    The app gets the credentials of the caller, which stay in this process, as if the caller had
    sent the request itself, and decides about it. A response that is refused ends the app.
    """

    async def act_for_caller(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        channel = _channel.get()
        asked = getattr(channel.context.caller, "scope", {})  # none over stdio
        passed = {name: each for name, each in asked.get("headers", ()) if name in _PASSED_ON}
        headers = {**dict(scope["headers"]), **passed}
        # Without an address: an app may trust clients on its own machine, which a caller is not.
        added = {"client": asked.get("client"), "state": dict(asked.get("state", {}))}
        if (access := channel.access) is not None:
            added["user"] = access
            added["auth"] = AuthCredentials(["authenticated", *sorted(access.scopes)])
        size, refused = 0, ""

        async def send_bounded(message: MutableMapping[str, Any]) -> None:
            nonlocal size, refused
            size += len(message.get("body", b""))
            refused = refused or _refusal(httpx.Headers(message.get("headers")), size)
            if refused:
                raise OSError(refused)  # ASGI: the connection is closed
            await send(message)

        try:
            await app({**scope, **added, "headers": [*headers.items()]}, receive, send_bounded)
        finally:
            if refused:  # whatever the app made of the exception
                raise ToolError(refused)

    transport = httpx.ASGITransport(act_for_caller)  # collects a whole response
    headers = {"Accept-Encoding": "identity"}  # compressed, it could be larger than counted
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


class OperationTool(Tool):
    """An operation of an HTTP API as a tool. Made by `openapi_tools`.

    Attributes:
        operation: its `operationId`, or its method and path.
    """

    max_hold = None  # it cannot wait, which need not be found out for each of 1,000 tools

    def __init__(
        self, operation: str, request: OperationRequest, client: httpx.AsyncClient
    ) -> None:
        self.operation = self.__name__ = operation  # the latter names it in errors
        self._request = request
        self._client = client

    @cached_property
    def _output(self) -> Schema | None:
        given = self.output_schema
        return Schema(given, formats=False) if isinstance(given, Mapping) else None

    async def call(self, request: ToolRequest, channel: Channel) -> CallToolResult:
        """Send the request to the API, and return its response.

        Raises:
            ToolError: an argument cannot be sent; the API cannot be reached, or responds with a
                status other than 2xx.
        """
        # Not `request.arguments`, in which the defaults of the schema are filled in: a PATCH would
        # change members that the caller has not named.
        raw: Any = request.raw_arguments or b"{}"
        try:
            sent = self._request.build(self._client, _decode(raw))
            _channel.set(channel)
            self._client.cookies.jar.set_policy(_SETS_NO_COOKIES)  # it may be a new jar
            response = await self._client.send(sent, stream=True)
            async with aclosing(response):
                body = await _read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = type(error).__name__  # the text of the error may contain the URL of the API
            host = self._client.base_url.host
            logger.warning("tool %s: no response from %s: %r", self.name, host, error)
            raise ToolError(f"{self.name}: the request failed: {reason}") from error
        return self._result(response, body)

    def _result(self, response: httpx.Response, body: bytes) -> CallToolResult:
        status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        if not response.is_success:
            # A redirect may lead to a host that is not public, as its page says, too.
            text = "" if response.is_redirect else body.decode(errors="replace")[:_MAX_ERROR]
            raise ToolError(f"{self.name}: {status}\n{text}".rstrip())
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{self.name}: {status}, but its content is no text") from None
        value: Any = None
        if is_json(response.headers.get("Content-Type", "")):
            with suppress(msgspec.DecodeError, RecursionError):
                value = _decode(body)
        if self._output is not None:
            faults = self._output.check(value) if value is not None else ["no JSON object"]
            if faults:
                words = f"{status}, but not as the API documents: {'; '.join(faults)}"
                return result(words, text, error=True)
        if isinstance(value, dict):
            return result(value)
        return result(text or f"{status} {response.headers.get('Location', '')}".rstrip())


def is_json(media_type: str) -> bool:
    """Return whether *media_type* is that of JSON."""
    name = media_type.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


def _refusal(headers: httpx.Headers, size: int) -> str:
    """Return why a response with these *headers* and *size* so far is not read; "" if it is."""
    if headers.get("Content-Type", "").lower().startswith("text/event-stream"):
        return "The response is a stream of events, which may never end."
    if size > _MAX_RESPONSE:
        return f"The response has more than {_MAX_RESPONSE} bytes. Ask for less, such as one page."
    return ""


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    if refused := _refusal(response.headers, 0):
        raise ToolError(refused)
    async for piece in response.aiter_bytes():
        body += piece
        if refused := _refusal(response.headers, len(body)):
            raise ToolError(refused)
    return bytes(body)
