"""The client that a request counts towards when usage is bounded.

A request counts towards its principal. An anonymous request counts towards its legacy session and
its peer address: a client can open any number of sessions, so that a bound per session alone would
not limit it. All anonymous requests also count together, so that many anonymous clients cannot take
the capacity that authenticated clients need.
"""

import ipaddress
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

import msgspec

Share = tuple[str, str]
"""A bounded share: a kind (`principal`, `session`, `address`, `anonymous`) and a key."""

_ANONYMOUS: Final[Share] = ("anonymous", "")


ADDRESS: Final = "address "
"""The beginning of the name of a client without a principal."""


def client_of(principal: str | None, address: str | None) -> str:
    """Return the name of a client, by what it cannot multiply: its principal or its address.

    "" for one in this process or at the other end of a pipe.
    """
    if principal is not None:
        return f"principal {principal}"
    return "" if address is None else f"{ADDRESS}{address}"


class ClientKey(msgspec.Struct, frozen=True, dict=True):
    """The identity of a client for bounds. Owned by the connection that received its request.

    Args:
        principal: the authenticated identity, None if anonymous.
        session: the key of the legacy session, None outside of one.
        address: the normalised peer address, empty if unknown. None: a client in this process or at
            the other end of a pipe, which is the only client and has no bounded share.
    """

    principal: str | None = None
    session: str | None = None
    address: str | None = None

    @cached_property
    def shares(self) -> Sequence[Share]:
        """All shares that the request counts towards, besides the total."""
        if self.principal is not None:
            return (("principal", self.principal),)
        if self.address is None:
            return ()
        if self.session is None:
            return (("address", self.address), _ANONYMOUS)
        return (("session", self.session), ("address", self.address), _ANONYMOUS)

    @property
    def is_anonymous(self) -> bool:
        """Whether the client has no principal, and is one of many."""
        return self.principal is None and self.address is not None

    @cached_property
    def client(self) -> str:
        """The name of the client (`client_of`)."""
        return client_of(self.principal, self.address)


LOCAL: Final = ClientKey()
"""A client without a principal in this process or at the other end of a pipe."""


@lru_cache(maxsize=1024)
def key_of(principal: str | None, session: str | None, address: str | None) -> ClientKey:
    """Return the key of a client. Cached, since most requests come from a recent client."""
    return ClientKey(principal, session, address)


@lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Return *peer* as it is counted: an IPv6 address by its /64, other text unchanged.

    A single machine is usually given a whole /64, so that a bound per IPv6 address would not limit
    it.
    """
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return peer
    if address.ipv4_mapped is not None:  # dual-stack sockets report IPv4 peers like this
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
