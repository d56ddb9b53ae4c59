"""The client whose share of the server a request uses.

A request counts for its principal. An anonymous one counts for its legacy session and for its peer
address: a client opens sessions at will, so that a session alone bounds nothing. All anonymous
requests count together as well, so that no crowd of them takes what authenticated clients need.
"""

import ipaddress
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from typing import Final

import msgspec

__all__ = ["LOCAL", "ClientKey", "Share", "address_of", "key_of"]

Share = tuple[str, str]
"""What a request counts for: a kind (`principal`, `session`, `address`, `anonymous`) and a key."""

_ANONYMOUS: Final[Share] = ("anonymous", "")


class ClientKey(msgspec.Struct, frozen=True, dict=True):
    """The client of a request, as bounds count it. Owned by the connection that brought it.

    Args:
        principal: the authenticated identity, None if there is none.
        session: the key of the legacy session, None outside of one.
        address: the normalised peer address, empty if unknown. None: a client in this process or
            at the other end of a pipe, which is the only one and has no share to keep to.
    """

    principal: str | None = None
    session: str | None = None
    address: str | None = None

    @cached_property
    def shares(self) -> Sequence[Share]:
        """Everything the request counts for besides the total."""
        if self.principal is not None:
            return (("principal", self.principal),)
        if self.address is None:
            return ()
        if self.session is None:
            return (("address", self.address), _ANONYMOUS)
        return (("session", self.session), ("address", self.address), _ANONYMOUS)

    @property
    def owner(self) -> Hashable | None:
        """The one share that a client cannot multiply: its principal or its address.

        None for a local client.
        """
        if self.principal is not None:
            return ("principal", self.principal)
        return None if self.address is None else ("address", self.address)


LOCAL: Final = ClientKey()
"""A client without a principal in this process, or at the other end of a pipe."""


@lru_cache(maxsize=1024)
def key_of(principal: str | None, session: str | None, address: str | None) -> ClientKey:
    """Return the key of a client, which is as a rule the one of a request before."""
    return ClientKey(principal, session, address)


@lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Return *peer* as it is counted: an IPv6 address by its /64, other text as it is.

    One machine is as a rule given a whole /64, so that single IPv6 addresses would bound nothing.
    """
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return peer
    if address.ipv4_mapped is not None:  # a socket for both families sees IPv4 peers like this
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
