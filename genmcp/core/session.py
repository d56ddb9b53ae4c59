"""Legacy sessions as values: the agreement of `initialize`, sealed into the id of the session.

The server stores nothing for a session; every request carries it. 2025-11-25, transports, "Session
Management", and lifecycle, "Initialization".
"""

from collections.abc import Container
from functools import cached_property
from typing import Final, Protocol

import msgspec

from genmcp.core.request import ClientInfo
from genmcp.errors import InvalidRequest, SessionNotFound
from genmcp.protocol.capabilities import ClientCapabilities, Implementation, ServerCapabilities
from genmcp.protocol.revisions.chain import LEGACY, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams, InitializeResult

_SPOKEN: Final = [revision.version for revision in LEGACY]


class ServerDescription(Protocol):
    """The declarations of a server, for the response to `initialize` and for routing."""

    @property
    def info(self) -> Implementation:
        """The name and version."""

    @property
    def instructions(self) -> str | None:
        """The instructions for the model."""

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities."""

    @property
    def methods(self) -> Container[str]:
        """The methods that the server itself answers."""

    @property
    def changes(self) -> object | None:
        """The source of its change notifications, if it sends any."""


class Session(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A legacy session. `key` names its records in the store; `issued` is Unix time."""

    key: str
    issued: float
    version: str
    name: str
    client_version: str
    capabilities: ClientCapabilities

    @cached_property
    def revision(self) -> Revision:
        """The revision the session speaks."""
        return REVISIONS[self.version]

    def check_batch(self) -> None:
        """Check that several messages may come at once: 2025-03-26, basic, "Batching".

        Raises:
            InvalidRequest: the session's revision has no batches.
        """
        if not self.revision.batches:
            raise InvalidRequest(f"The body must be one message: {self.version} has no batches")

    def initialize_result(self, server: ServerDescription) -> InitializeResult:
        """Return the result of the `initialize` that began the session."""
        return InitializeResult(
            protocol_version=self.version,
            capabilities=server.capabilities,
            server_info=server.info,
            instructions=server.instructions,
        )

    @cached_property
    def client(self) -> ClientInfo:
        """The client, as it introduced itself."""
        info = Implementation(name=self.name, version=self.client_version)
        return ClientInfo(self.version, info, self.capabilities)

    def pack(self) -> bytes:
        """Return the bytes to seal.

        As an array: its members cannot be reordered. A release that adds one gives it a default,
        and puts it last, so that sessions survive a deploy.
        """
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "Session":
        """Return the session that `pack` has packed.

        Raises:
            SessionNotFound: it was packed by a release with another format or other revisions.
        """
        try:
            session = _decoder.decode(packed)
        except msgspec.MsgspecError:
            raise SessionNotFound("Session not found: another release has opened it") from None
        # The seal proves that this server has written it, perhaps in a release with more revisions.
        if session.version not in _SPOKEN:
            raise SessionNotFound(f"Session not found: {session.version} is no longer supported")
        return session


_decoder = msgspec.msgpack.Decoder(Session)


def anonymous_params(revision: Revision, name: str = "") -> InitializeRequestParams:
    """Return the params of a client that sends no `initialize` and declares no capability."""
    return InitializeRequestParams(
        protocol_version=revision.version,
        capabilities=ClientCapabilities(),
        client_info=Implementation(name=name, version="1" if name else ""),
    )


def new_session(params: InitializeRequestParams, *, key: str, now: float) -> Session:
    """Return the session for the params of `initialize`.

    2025-11-25, lifecycle, "Version Negotiation": the requested version if it is supported, else the
    newest that is.
    """
    # For an unknown version the server responds with its newest, and the client decides whether to
    # disconnect. 2026-07-28 and later, which have no sessions, are handled in the same way.
    version = params.protocol_version
    if version not in _SPOKEN:
        version = _SPOKEN[0]
    revision = REVISIONS[version]
    return Session(
        key=key,
        issued=now,
        version=version,
        name=params.client_info.name,
        client_version=params.client_info.version,
        # Without capabilities that the revision does not define: nothing could use them.
        capabilities=revision.up(revision.down(params.capabilities)),
    )
