"""What a hook returns instead of a result: what to wait for, and what to call the answer."""

import asyncio
import inspect
from collections.abc import Awaitable, Mapping
from concurrent import futures
from typing import Any, TypeAlias

from genmcp.core.task import Job, Ref
from genmcp.errors import ContractError
from genmcp.question.question import Question
from genmcp.question.several import questions_of

__all__ = ["Continue", "WaitsFor"]

WaitsFor: TypeAlias = (
    Awaitable[Any] | futures.Future[Any] | Job | Ref | Question | Mapping[str, Question]
)


class Continue:
    """The call goes on in `continue_(tag, outcome, channel)` once what it waits *on* is there.

    on: a coroutine, an asyncio.Task, a future of asyncio or concurrent.futures; a `Job`; a `Ref` to
    a job that somebody else owns; a question to the client, or a dict of them. A coroutine is
    cancelled with the call; a Task or future is its maker's, and is only not waited for any more.

    Raises:
        ContractError: (a TypeError) the tag is no text, or *on* is nothing that can be waited for.
    """

    __slots__ = ("_on", "alone", "questions", "tag")

    def __init__(self, tag: str, on: WaitsFor) -> None:
        if not isinstance(tag, str):
            raise ContractError(f"Continue: the tag must be a text, not {tag!r}")
        self.tag = tag
        self.questions: Mapping[str, Question] = {}
        self.alone = isinstance(on, Question)
        self._on: Any = on
        if isinstance(on, Question | Mapping):
            self.questions = questions_of(tag, on)
        elif not isinstance(on, Job | Ref | futures.Future) and not inspect.isawaitable(on):
            raise ContractError(
                f"Continue({tag!r}, ...) cannot wait for {type(on).__name__}: give a coroutine, a "
                f"Task or future, a Job, a Ref, or a question"
            )

    def __repr__(self) -> str:
        return f"<Continue {self.tag!r} on {self._on!r}>"

    def take(self) -> Any:
        """Return what is waited for, and let go of it: whoever was to end it may drop it."""
        on, self._on = self._on, None
        return on

    @property
    def work(self) -> Job | Ref | None:
        """The job it waits for, if that is what it waits for."""
        return self._on if isinstance(self._on, Job | Ref) else None

    def close(self) -> None:
        """Let go of what nobody will wait for: a coroutine that has not begun never will."""
        on = self.take()
        if asyncio.iscoroutine(on):
            on.close()
