"""Bounds on the questions and log messages that a hub forwards."""

from typing import Final

import msgspec

from genmcp.errors import ConfigurationError

__all__ = ["HubLimits"]

_COUNTS: Final = ("questions", "questions_of_address", "all_questions", "logs")
_TIMES: Final = ("answer_timeout", "form_patience")


class HubLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what `Hub.server` keeps for its clients; times in seconds.

    A forwarded question does not count towards `ClientOptions.input_concurrency`: it waits for a
    person, and would block all others.

    questions: questions that may wait for the answers of one principal, or of one session of an
        anonymous client. Further ones are refused. Default 16.
    questions_of_address: ... of all anonymous clients of one address. Default 64. all_questions:
        ... of all clients together. Default 1000. anonymous: the fraction of all_questions that
        anonymous clients may have, above 0 and up to 1. Default 0.8.
    answer_timeout: how long a call waits for its client's answer before it is given up. Default
        1200.
    form_patience: how long a question may block those of other calls, at a server that does not
        identify the call of a question (stdio, before 2026-07-28). Then its call is given up. The
        time is halved for a client with each question that was given up, and is zero for a client
        whose connection is closed. Default 60.
    logs: log messages of one call that may be queued for its client; further ones are dropped.
        Default 1000.

    Raises:
        ConfigurationError: a count is below 1, a time is negative, or anonymous is out of range.
    """

    questions: int = 16
    questions_of_address: int = 64
    all_questions: int = 1000
    anonymous: float = 0.8
    answer_timeout: float = 1200.0
    form_patience: float = 60.0
    logs: int = 1000

    def __post_init__(self) -> None:
        """Check every value; the error names the invalid one."""
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"HubLimits.{name} must be 1 or more")
        for name in _TIMES:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"HubLimits.{name} must not be negative")
        if not 0 < self.anonymous <= 1:
            raise ConfigurationError(f"HubLimits.anonymous must be from 0 to 1: {self.anonymous!r}")
