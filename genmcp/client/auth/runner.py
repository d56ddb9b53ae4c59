"""Running a flow: its steps become requests, questions to the user, and changes of the storage.

A flow that has the lock of its record is not cancelled before it releases it: in a renewal, the
authorization server may have replaced the refresh token already, and without the new one the user
would have to log in again. A cancellation is raised after that. That delays it by the timeout of
the requests at most.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable
from typing import Any, TypeVar

from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import (
    Ask,
    Call,
    Fetch,
    FlowFailed,
    Listen,
    Load,
    Lock,
    Save,
    Step,
    Steps,
    Unlock,
)
from genmcp.auth.fetcher import Fetcher
from genmcp.cancellation import run_to_completion
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.auth.tokens import TokenStorage, TokensUnavailable

T = TypeVar("T")


class LoginNeeded(FlowFailed):
    """A flow has come to the login of the user, who cannot be asked."""


class FlowRunner:
    """Runs one flow. Owned by the task that runs it.

    Args:
        key: the name of the record in *tokens*.
        tokens: stores the record.
        fetcher: sends the requests; it is closed at the end.
        prompt: asks the user; it is closed at the end. None: no login is possible.
    """

    def __init__(
        self, key: str, tokens: TokenStorage, fetcher: Fetcher, prompt: UserPrompt | None = None
    ) -> None:
        self._key = key
        self._tokens = tokens
        self._fetcher = fetcher
        self._prompt = prompt
        self._lock = AsyncExitStack()
        self._is_locked = False
        self._is_cancelled = False  # while locked

    async def run(self, steps: Steps[T]) -> T:
        """Run *steps* to their end, and return their result.

        An exception of a step is raised in the flow, which may handle it.

        Raises:
            FlowFailed: The flow failed.
            TokensUnavailable: The storage cannot be used.
        """
        try:
            return await self._run(steps)
        finally:
            steps.close()
            # A lock that is not released holds up the other processes until it expires.
            await run_to_completion(self._close())
            if self._is_cancelled:
                raise asyncio.CancelledError

    async def _run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        error: Exception | None = None
        while not self._is_cancelled or self._is_locked:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            perform = self._perform_to_completion if self._is_locked else self._perform
            try:
                outcome, error = await perform(step), None
            except Exception as failure:  # of the storage, or of the user's function
                error = failure
        raise asyncio.CancelledError

    async def _perform_to_completion(self, step: Step) -> object:
        task = asyncio.get_running_loop().create_task(self._perform(step))
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                self._is_cancelled = True
        return task.result()

    async def _perform(self, step: Step) -> object:
        match step:
            case Fetch():
                return await self._fetcher.fetch(step)
            case Load():
                return await self._tokens.load(self._key)
            case Save():
                await self._tokens.save(self._key, step.record)
            case Lock():
                await self._lock.enter_async_context(self._tokens.lock(self._key))
                self._is_locked = True
            case Unlock():
                await self._lock.aclose()
                self._is_locked = False
            case Listen():
                return await self._user().listen(step)
            case Ask():
                return await self._ask(step)
            case Call():
                result = step.function()
                return await result if isawaitable(result) else result
        return None

    async def _ask(self, step: Ask) -> str:
        try:
            return await self._user().ask(step)
        except BaseException:
            if step.forget is not None:
                with suppress(TokensUnavailable):
                    await run_to_completion(self._forget(step.forget))
            raise

    async def _forget(self, record: Record) -> None:
        """Remove *record*, unless another flow has replaced it meanwhile."""
        async with self._tokens.lock(self._key):
            if await self._tokens.load(self._key) == record:
                await self._tokens.save(self._key, None)

    def _user(self) -> UserPrompt:
        if self._prompt is None:
            raise LoginNeeded("a login is needed, and the user cannot be asked here")
        return self._prompt

    async def _close(self) -> None:
        try:
            await self._lock.aclose()
        finally:
            if self._prompt is not None:
                await self._prompt.close()
            await self._fetcher.close()
