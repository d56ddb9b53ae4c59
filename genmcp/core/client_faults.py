"""What the other side does wrong, told apart from what this side does."""

from genmcp.errors import GenmcpError, OutOfTurn

__all__ = ["PeerFault", "PeerOutOfTurn"]


class PeerFault(GenmcpError):
    """The peer broke the protocol; the message says how."""


class PeerOutOfTurn(OutOfTurn, PeerFault):
    """The peer took a step that the state does not allow."""

    fault = "the peer"
