"""A request as a store keeps it beside its task, so that any process can go on with it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from genmcp.channel import Channel, Sink
from genmcp.core.json_value import check_json
from genmcp.core.request import Client, Request
from genmcp.errors import AssignGone, ContractError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.meta import RequestId
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.server import Server
from genmcp.wire.jsonrpc import params_of

__all__ = ["KeptCall"]


class KeptCall(msgspec.Struct, frozen=True, array_like=True):
    """What is needed of a request to go on with it.

    params: as they came, JSON. kept: of the assigns that were copied from the host's request, those
    that the endpoint's keep_assigns names. gone: the keys of the others.
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

    @classmethod
    def of(cls, channel: Channel, keep: Collection[str]) -> "KeptCall":
        """Return the request of *channel*; *keep* names the copied assigns that go along.

        Raises:
            ContractError: one of them is not JSON.
        """
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
            kept=_kept(channel.copied, keep),
            gone=[key for key in channel.copied if key not in keep],
        )

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _encoder.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "KeptCall":
        """Return what `pack` packed.

        Raises:
            msgspec.MsgspecError: it was packed by a release that speaks of it differently.
        """
        return _decoder.decode(packed)

    def channel(
        self, server: Server, sink: Sink, static: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Channel:
        """Return a channel for the same request, whose words go to *sink*.

        Raises:
            ContractError: what it asked for is not there any more, or its revision is not served.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            raise ContractError(f"{self.version} is not served any more")
        method = revision.methods[self.method]
        params = revision.up(method.params_decoder.decode(self.params or b"{}"))
        key = getattr(params, method.name_member or "")
        route = server.find(self.method, key)
        if route is None:
            raise ContractError(f"{self.method} {key} is not there any more")
        request = Request(
            id=self.id,
            method=self.method,
            params=params,
            raw=msgspec.Raw(self.params),
            revision=revision,
            client=Client(self.version, self.info, self.capabilities),
            session=self.session,
            route=route,
        )
        channel = Channel(request, sink, self.principal, static, self.kept)
        channel.restore(own, _Gone(self.gone))
        return channel


def _kept(copied: Mapping[str, Any], keep: Collection[str]) -> dict[str, Any]:
    kept = {key: value for key, value in copied.items() if key in keep}
    check_json("keep_assigns", kept)
    return kept


class _Gone(dict[str, Any]):
    """Assigns that were there for the request, and are not where nobody requests anything."""

    def __init__(self, keys: Collection[str]) -> None:
        super().__init__(dict.fromkeys(keys))

    def __getitem__(self, key: str) -> Any:
        if key in self:
            raise AssignGone(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KeptCall)
