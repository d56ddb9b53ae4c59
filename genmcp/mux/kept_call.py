"""A request as a store keeps it beside its task, so that any process can go on with it."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from genmcp.channel import Channel, Sink
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Client, Request
from genmcp.jobs.elsewhere import Elsewhere
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.meta import RequestId
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.server import Server
from genmcp.wire.jsonrpc import params_of

__all__ = ["KeptCall"]


class KeptCall(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: as received, JSON. kept: of the assigns that were copied from the host's request, those
    named by the endpoint's keep_assigns. gone: the keys of the others. address: the peer address
    that an anonymous request counts towards.
    """

    id: RequestId
    method: str
    params: bytes
    version: str
    info: Implementation | None
    capabilities: ClientCapabilities
    session: str | None
    principal: str | None
    kept: Mapping[str, Any]
    gone: Collection[str]
    address: str | None = None

    @property
    def client_key(self) -> ClientKey:
        """The client that sent the request."""
        return ClientKey(self.principal, self.session, self.address)

    @classmethod
    def of(cls, channel: Channel, keep: Collection[str]) -> "KeptCall":
        """Return the request of *channel*; *keep* names the copied assigns that go along."""
        request = channel.request
        raw = request.raw
        return cls(
            id=request.id,
            method=request.method,
            params=bytes(params_of(raw) if isinstance(raw, bytes) else raw),
            version=request.revision.version,
            info=request.client.info,
            capabilities=request.client.capabilities,
            session=request.session,
            principal=channel.principal,
            kept={key: value for key, value in channel.copied.items() if key in keep},
            gone=[key for key in channel.copied if key not in keep],
            address=channel.client_key.address,
        )

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _encoder.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "KeptCall":
        """Decode what `pack` encoded.

        Raises:
            Elsewhere: it was encoded by a release with another format.
        """
        try:
            return _decoder.decode(packed)
        except msgspec.MsgspecError as error:
            unknown = f"a request was kept by another release: {error}"
            raise Elsewhere(
                unknown, "The call was kept by another release of the server"
            ) from error

    def request(self) -> Request:
        """Return the request, without its route.

        Raises:
            Elsewhere: its revision is not served here.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            unknown = f"{self.version} is not served any more"
            raise Elsewhere(unknown, unknown)
        method = revision.methods[self.method]
        return Request(
            id=self.id,
            method=self.method,
            params=revision.up(method.params_decoder.decode(self.params or b"{}")),
            raw=msgspec.Raw(self.params),
            revision=revision,
            client=Client(self.version, self.info, self.capabilities),
            session=self.session,
        )

    def channel(
        self, server: Server, sink: Sink, static: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Channel:
        """Return a channel for the same request, with *sink* for its notifications.

        Raises:
            Elsewhere: the requested component does not exist here, or the revision is not served.
        """
        request = self.request()
        method = request.revision.methods[self.method]
        key = getattr(request.params, method.name_member or "")
        route = server.find(self.method, key)
        if route is None:
            unknown = f"{self.method} {key} is not there any more"
            raise Elsewhere(unknown, unknown)
        request = msgspec.structs.replace(request, route=route)
        channel = Channel(request, sink, self.principal, static, self.kept)
        channel.restore(own, self.gone)
        return channel


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KeptCall)
