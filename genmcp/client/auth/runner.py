"""Running a flow: its steps become requests, questions to the user, and changes of the storage."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
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
    Locked,
    Save,
    Step,
    Steps,
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
            await run_to_completion(self._close())

    async def _run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        error: Exception | None = None
        try:
            while True:
                step = steps.send(outcome) if error is None else steps.throw(error)
                try:
                    outcome, error = await self._perform(step), None
                except Exception as failure:  # of the storage, or of the user's function
                    error = failure
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    async def _perform(self, step: Step) -> object:
        match step:
            case Fetch():
                return await self._fetcher.fetch(step)
            case Load():
                return await self._tokens.load(self._key)
            case Locked():
                async with self._tokens.lock(self._key):
                    return await _uncancelled(self._run(step.steps))
            case Save():
                await self._tokens.save(self._key, step.record)
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
        if self._prompt is not None:
            await self._prompt.close()
        await self._fetcher.close()


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end, and return its result. A cancellation is raised after that.

    That delays it by the timeout of the requests at most.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        with suppress(Exception):
            task.result()  # retrieved, or asyncio logs "exception was never retrieved"
        raise asyncio.CancelledError
    return task.result()
