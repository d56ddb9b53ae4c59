"""The request of a call that is a task, as it is stored beside the record."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.request import REQUEST_TYPES, ClientInfo, Request
from genmcp.core.server_dispatch import reader_of
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import RequestId
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.tasks.outcomes import NotRunnableHere
from genmcp.tasks.values import store_types


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: the params as received, JSON; *whole*: the message with them. kept: the assigns copied
    from the host's request whose keys are in the endpoint's `keep_assigns`. gone: the keys of the
    other copied assigns, which are not stored. address: the peer address that an anonymous request
    counts towards. access: that of the client, without its claims, which may be private, and its
    time of expiry: a call that was authorized when it began continues after that. scopes: those
    that the call needed, and that an answer to one of its questions needs (`tasks/update`). They
    are stored, because `Server.find` does not know those of a provider's component.
    """

    id: RequestId
    method: str
    params: bytes
    version: str
    info: Implementation | None
    capabilities: ClientCapabilities
    session: str | None
    kept: Mapping[str, Any]
    gone: Collection[str]
    address: str | None
    access: Access | None
    whole: bool
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, channel: Channel) -> "StoredRequest":
        """Return the request of *channel*, with those copied assigns that the endpoint keeps."""
        request, caller = channel.request, channel.context.caller
        copied, keep, access = caller.copied or {}, caller.keep, channel.access
        if access is not None:
            access = msgspec.structs.replace(access, claims={}, expires=None)
        raw = request.raw
        kept = {key: copied[key] for key in keep if key in copied} if copied else {}
        return cls(
            id=request.id,
            method=request.method,
            params=bytes(raw),
            version=request.revision.version,
            info=request.client.info,
            capabilities=request.client.capabilities,
            session=request.session,
            kept=store_types("keep_assigns", kept) if kept else kept,
            gone=[*(copied.keys() - kept.keys())] if copied else [],
            address=caller.client_key.address,
            access=access,
            whole=isinstance(raw, bytes),
            scopes=() if request.route is None else request.route.scopes,
        )

    def pack(self) -> bytes:
        """Return the bytes to store."""
        # A copy: msgspec leaves half as much memory again behind what it encodes.
        return bytes(memoryview(_encoder.encode(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> "StoredRequest":
        """Return the request that `pack` has packed.

        Raises:
            NotRunnableHere: it was packed by a release with another format.
        """
        try:
            return _decoder.decode(packed)
        except msgspec.MsgspecError as error:
            unknown = f"a request was stored by another release: {error}"
            raise NotRunnableHere(
                unknown, "The call was stored by another release of the server"
            ) from error

    def request(self) -> Request:
        """Return the request, without its route.

        Raises:
            NotRunnableHere: its revision is not supported here.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            unknown = f"{self.version} is no longer supported"
            raise NotRunnableHere(unknown, unknown)
        method = revision.methods[self.method]
        if self.whole:
            params = reader_of(method)(self.params).params
        else:
            params = method.params_decoder.decode(self.params or b"{}")
        return REQUEST_TYPES.get(self.method, Request)(
            id=self.id,
            method=self.method,
            params=revision.up(params),
            raw=self.params if self.whole else msgspec.Raw(self.params),
            revision=revision,
            client=ClientInfo(self.version, self.info, self.capabilities),
            session=self.session,
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRequest)
