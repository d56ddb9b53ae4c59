"""Bounds on what a hub passes on."""

from typing import Final

import msgspec

from genmcp.errors import ConfigurationError

__all__ = ["HubLimits"]

_COUNTS: Final = ("questions", "questions_of_address", "all_questions", "logs")
_TIMES: Final = ("answer_timeout", "form_patience")


class HubLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what `Hub.server` keeps for its clients; times in seconds.

    A question of a server that is passed on holds none of the places that `ClientOptions.questions`
    allows: it waits for a person, and would keep all others from being asked.

    questions: how many questions may wait for the answers of one principal, or of one session of
        an anonymous client. Another one is refused.
    questions_of_address: ... of all anonymous clients of one address. all_questions: ... of all
        clients together. anonymous: the part of it, up to 1, that anonymous clients may have.
    answer_timeout: how long a call waits for its client's answer before it is given up.
    form_patience: how long a question may keep those of other calls from being asked, at a server
        that does not tell which call it asks about (stdio, before 2026-07-28). Then its call is
        given up. It is half of that for a client after each question it has left like this, and
        nothing for one whose connection is gone.
    logs: how many log messages of one call may wait for its client; more are dropped.

    Raises:
        ConfigurationError: a value that is not positive.
    """

    questions: int = 16
    questions_of_address: int = 64
    all_questions: int = 1000
    anonymous: float = 0.8
    answer_timeout: float = 1200.0
    form_patience: float = 60.0
    logs: int = 1000

    def __post_init__(self) -> None:
        """Check every value, naming the wrong one."""
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"HubLimits.{name} must be 1 or more")
        for name in _TIMES:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"HubLimits.{name} must not be negative")
        if not 0 < self.anonymous <= 1:
            raise ConfigurationError(f"HubLimits.anonymous must be from 0 to 1: {self.anonymous!r}")
