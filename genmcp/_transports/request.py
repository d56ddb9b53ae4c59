"""One HTTP request as ASGI presents it: its context, and its response if the client is slow."""

import asyncio
import logging
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from genmcp._mux.limits import Slots
from genmcp._mux.mux import Mux
from genmcp._mux.responses import EncodedResponse
from genmcp._mux.scopes import log_insufficient, scopes_of
from genmcp._mux.telemetry import Rejection
from genmcp._transports.running_call import LiveCaller
from genmcp._transports.shutdown import LAST_WORDS, Shutdown
from genmcp.core.access import Access
from genmcp.core.client_key import ClientKey, address_of, key_of
from genmcp.core.request import Request
from genmcp.core.server import Reject
from genmcp.errors import ConfigurationError, InsufficientScope
from genmcp.protocol.params import RequestId
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.revision import Revision

logger = logging.getLogger("genmcp")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
FindClientKey = Callable[[Scope], str | None]
"""Returns the key of an anonymous client from an ASGI scope; None stands for the peer address."""

IN_PROCESS = "genmcp.in_process"
"""The ASGI extension in the scopes of a client in the same process, which has no peer address.

A client for tests is to be one over HTTP, and states the `address` that it would have.
"""

UNCOUNTED: Final = 16 * 1024
"""Bytes of a body, or of messages that wait, that are not counted: a request takes as many."""

PIECE: Final = 64 * 1024
"""Bytes given to the server at once, and the size of its buffer, which are counted as well."""


class Challenger(Protocol):
    """Writes the challenges of an endpoint. It is the `Authenticator` of `Endpoint(auth=)`."""

    def challenge(self, scope: Scope, error: str, description: str, scopes: Sequence[str]) -> str:
        """Return the value of `WWW-Authenticate`; see `HttpRequest.challenge`."""


class ClientLeft(Exception):
    """The client closed the connection, so that no response can reach it."""


class UnreadResponse(msgspec.Struct, eq=False):
    """A response that its client does not read as fast as it is written. Owned by its request."""

    _http: "HttpRequest"
    client_key: ClientKey
    _queued: int = 0
    _unwritten: list[bytes] = []
    _deadline: asyncio.Timeout | None = None
    _drop: Callable[[], object] | None = None
    _closed: bool = False

    async def wait(self, sending: Coroutine[Any, Any, None], pending: list[bytes]) -> None:
        """Run *sending*, which waits for the client to read the body in *pending*.

        Raises:
            ClientLeft: the connection is closed, or the client has read nothing for
                `Limits.write_timeout` seconds.
        """
        http = self._http
        self._unwritten = pending
        http.shutdown.add(http.hasten)
        try:
            async with asyncio.timeout(self._patience) as self._deadline:
                self._count()
                await sending
        except TimeoutError:
            logger.info("a connection is closed: its client has read nothing (%s)", self._limit)
            abort(http)
            await asyncio.sleep(0)  # the server learns of it before the request ends
            raise ClientLeft from None
        except OSError:
            raise ClientLeft from None
        finally:
            http.shutdown.discard(http.hasten)
            self._deadline = None
            self._unwritten = []
            self._count()

    def queue(self, size: int, drop: Callable[[], object] | None = None) -> None:
        """Set the size of the messages that are not being written yet.

        *drop* frees them; called when the connection is closed because of their size.
        """
        self._queued, self._drop = size, drop
        self._count()

    def read(self) -> None:
        """Extend the deadline, since the client has read a piece."""
        if self._deadline is not None:
            self._end_in(self._patience)
            self._count(was_read=True)

    def hasten(self) -> None:
        """Give the client `LAST_WORDS` seconds to read the rest."""
        self._end_in(LAST_WORDS)

    def _end_in(self, seconds: float) -> None:
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._http.loop.time() + seconds)

    def close(self) -> None:
        """Close the connection, and drop the bytes; called by the account, from any thread."""
        self._http.in_loop(self._close)

    def _close(self) -> None:
        self._closed = True
        self._unwritten.clear()
        if self._drop is not None:
            self._drop()
        abort(self._http)
        self._end_in(0)

    @property
    def _patience(self) -> float:
        http = self._http
        return LAST_WORDS if http.hastened else http.mux.limits.write_timeout

    @property
    def _limit(self) -> str:
        if self._closed:
            return "its client's responses take too much memory"
        return "shutdown" if self._http.hastened else "limit: write_timeout"

    def _count(self, *, was_read: bool = False) -> None:
        if self._closed:
            return
        size = self._queued
        if self._deadline is not None:
            size += sum(map(len, self._unwritten)) + PIECE
        self._http.mux.unsent_bytes.count(self, size, was_read=was_read)


class HttpRequest(msgspec.Struct, eq=False):
    """The state of one HTTP request. Owned by the endpoint while it serves the request.

    table: the request headers. headers: added to every response. streams: whether the client
    accepts event streams. access: the content of the client's access token, or the access that the
    host application gave; principal: its identity. copied: the assigns copied from the host's
    request; keep: the keys of those that may be stored. id, method: those of the JSON-RPC request,
    once they are known. session: the key of the legacy session. response_begun: whether the
    response has begun. detached: whether the client has closed the connection. body_size: the bytes
    of the body that count towards the client's share. unread: the response, once its client has
    kept a write waiting. hastened: whether the client has only `LAST_WORDS` seconds to read: the
    server is shutting down, the host has cancelled the request, or its stream ends. challenger:
    writes the challenges of an endpoint that authenticates its clients. loop, thread: those that
    serve it.
    """

    mux: Mux
    shutdown: Shutdown
    heartbeat: float
    receive: Receive
    send: Send
    scope: Scope
    _find_client_key: FindClientKey | None
    table: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    headers: Headers = ()
    streams: bool = True
    access: Access | None = None
    principal: str | None = None
    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()
    id: RequestId | None = None
    method: str | None = None
    session: str | None = None
    response_begun: bool = False
    body_size: int = 0
    detached: bool = False
    unread: UnreadResponse | None = None
    hastened: bool = False
    challenger: Challenger | None = None
    loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    thread: int = msgspec.field(default_factory=threading.get_ident)
    _client_key: ClientKey | None = None
    _body_slots: Slots = ()

    @property
    def client_key(self) -> ClientKey:
        """The client that the request counts towards; determined at the first access.

        Raises:
            ConfigurationError: the setting `Endpoint(client_key=)` is wrong.
        """
        if self._client_key is None:
            if self.principal is None:
                self._client_key = key_of(None, self.session, self._find_address())
            else:
                self._client_key = key_of(self.principal, None, None)
        return self._client_key

    def _find_address(self) -> str | None:
        """Return the client's address, empty if it is unknown; None for one in this process."""
        scope, find = self.scope, self._find_client_key
        found = None if find is None else find(scope)
        if found is not None:
            if not isinstance(found, str):
                raise ConfigurationError(
                    f"client_key= of Endpoint returned {found!r}: it must return a text, or None "
                    f"to count the request for its peer address"
                )
            return address_of(found)
        if (in_process := scope.get("extensions", {}).get(IN_PROCESS)) is not None:
            address: str | None = in_process.get("address")
            return address
        peer = scope.get("client")
        return address_of(peer[0]) if peer else ""

    def authenticate(self, access: Access) -> None:
        """Set the access of the client, before anything of the request is served."""
        self.access = access
        self.principal = access.principal
        self._client_key = None  # until now, the request counted towards its address

    def challenge(self, error: str, description: str, scopes: Sequence[str]) -> str:
        """Return the value of `WWW-Authenticate` for an operation that needs *scopes*.

        Args:
            error: the error code (RFC 6750, 3.1); empty for a request without credentials.
            description: the error in words.
            scopes: the scopes of the operation; those of the endpoint are added.
        """
        if self.challenger is not None:
            return self.challenger.challenge(self.scope, error, description, scopes)
        from genmcp.core.auth.challenges import bearer_challenge  # only if something is refused

        return bearer_challenge(error, description, scopes)

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check that the client was granted *scopes*.

        Raises:
            InsufficientScope: it lacks one, or is anonymous.
        """
        if self.access is None or self.access.missing(scopes):
            raise InsufficientScope(*scopes)

    def check_scopes(self, requests: Sequence[Request]) -> None:
        """Check the scopes of the components that *requests* name, before any of them runs.

        Raises:
            InsufficientScope: the client lacks one. It names the scopes of all *requests*, so that
                a client that asks its user for them can then send all again.
        """
        needed: dict[str, None] = {}
        refused = False
        for request in requests:
            try:
                scopes = scopes_of(self.mux.server, request, self.access)
            except Exception:  # of the server author's `find` or `visible`
                if len(requests) == 1:
                    raise
                continue  # it fails one member of a batch, whose own check raises it again
            if scopes:
                needed.update(dict.fromkeys(scopes))
                if self.access is None or self.access.missing(scopes):
                    refused = True
                    log_insufficient(request, self.access, scopes)
        if refused:
            raise InsufficientScope(*needed)

    def as_whole(self, response: EncodedResponse) -> EncodedResponse:
        """Return *response* as a whole HTTP response: a challenge, if the client lacks scopes.

        2026-07-28, authorization, "Runtime Insufficient Scope Errors". It is sent on every
        revision: clients read the status before the message.
        """
        error = response.refusal
        if error is None:
            return response
        status, code, text = 403, "insufficient_scope", error.message
        if self.access is None:
            status, code, text = 401, "", "The operation needs an access token"
        challenge = self.challenge(code, text, error.scopes)
        body = msgspec.json.encode({"error": code or "unauthorized", "error_description": text})
        headers = {"www-authenticate": challenge, "cache-control": "no-store"}
        return msgspec.structs.replace(response, body=body, status=status, headers=headers)

    def enter(self, session: str) -> None:
        """Make the request count towards the legacy session with this key as well."""
        self.session = session
        if self._client_key is not None and self._client_key.principal is None:
            self._client_key = msgspec.structs.replace(self._client_key, session=session)

    def count_body(self, size: int) -> None:
        """Count *size* bytes of a body towards the client's share, replacing the earlier count.

        Raises:
            Overloaded: they exceed the share, or the total of all clients.
        """
        bodies, more = self.mux.body_bytes, size - self.body_size
        bodies.check(self.client_key, size=more)
        self._body_slots = bodies.acquire(self.client_key, size=more)
        self.body_size = size

    def release_body(self) -> None:
        """Stop counting the bytes of the body."""
        self.mux.body_bytes.release(self._body_slots, size=self.body_size)
        self.body_size = 0

    def in_loop(self, step: Callable[..., object], *arguments: Any) -> None:
        """Call *step* in the event loop of the request: now, or soon if this is another thread."""
        if threading.get_ident() == self.thread:
            step(*arguments)
        else:
            with suppress(RuntimeError):  # the loop was closed, and the request with it
                self.loop.call_soon_threadsafe(step, *arguments)

    def queue(self, size: int, drop: Callable[[], object]) -> None:
        """Count *size* bytes of the response, which wait to be written, towards the client.

        *drop* frees them, if they exceed the bound of all clients.
        """
        if self.unread is None:
            self.unread = UnreadResponse(self, self.client_key)
        self.unread.queue(size, drop)

    def hasten(self) -> None:
        """Give the client `LAST_WORDS` seconds to read each part of the response."""
        self.hastened = True
        if self.unread is not None:
            self.unread.hasten()


Serve = Callable[[HttpRequest], Awaitable[None]]
"""Serves a request whose headers were accepted."""


def reject(
    caller: LiveCaller, action: Reject, session: str | None = None, revision: Revision = LATEST
) -> bytes:
    """Report a rejected message to telemetry; return the error response."""
    rejection = Rejection(
        error=action.error,
        id=action.id,
        method=action.method,
        principal=caller.principal,
        session=session,
    )
    caller.mux.observers.rejected(rejection)
    return caller.mux.encoder.error(revision, action.id, action.error)


def as_headers(headers: Mapping[str, str]) -> Headers:
    """Return the *headers* of an error in the form of ASGI."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    message = await receive()
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()  # the body of a GET, which is not read anywhere else
    if message["type"] == "http.request":
        message = await receive()
    while message["type"] != "http.disconnect":
        await asyncio.sleep(1)  # some middlewares return the body at each call
        message = await receive()


def abort(http: "HttpRequest") -> None:
    """Close the connection of *http*, although its client has not read what was sent.

    ASGI has no message for it: a server that is told of an incomplete response still waits until
    its buffer is read.
    """
    if (transport := transport_of(http)) is not None:
        transport.abort()


def transport_of(http: "HttpRequest") -> asyncio.Transport | None:
    """Return the open connection, if the server is uvicorn, and `receive` is its own."""
    cycle = getattr(http.receive, "__self__", None)
    transport: asyncio.Transport | None = getattr(cycle, "transport", None)
    return None if transport is None or transport.is_closing() else transport
