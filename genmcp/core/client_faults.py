"""What the other side does wrong, told apart from what this side does."""

from genmcp.errors import GenmcpError, IllegalTransition

__all__ = ["LateAnswer", "PeerFault", "PeerIllegalTransition"]


class PeerFault(GenmcpError):
    """The peer broke the protocol; the message says how."""


class LateAnswer(PeerFault):
    """The peer answered what does not wait for an answer, or not any more."""


class PeerIllegalTransition(IllegalTransition, PeerFault):
    """The peer sent what it may not send then: *step* and *state* in words."""

    fault = "the peer"

    def __init__(self, step: object, state: object) -> None:
        super().__init__(step, state)
        self.args = (f"the server sent {step} {state}, which it must not",)
