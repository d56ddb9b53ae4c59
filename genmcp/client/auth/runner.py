"""Running a flow: its steps become requests, questions to the user, and changes of the storage."""

from contextlib import AsyncExitStack
from inspect import isawaitable
from typing import Any, TypeVar

from genmcp._core.auth.steps import (
    Ask,
    Call,
    Fetch,
    FlowFailed,
    Listen,
    Load,
    Lock,
    Step,
    Steps,
    Swap,
    Unlock,
)
from genmcp.cancellation import run_to_completion
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.auth.fetcher import Fetcher
from genmcp.client.auth.tokens import TokenStorage

T = TypeVar("T")


class FlowRunner:
    """Runs one flow. Owned by the task that runs it.

    Args:
        key: The name of the record in *tokens*.
        tokens: Stores the record.
        fetcher: Sends the requests; it is closed at the end.
        prompt: Asks the user; it is closed at the end. None: no login is possible.
    """

    def __init__(
        self, key: str, tokens: TokenStorage, fetcher: Fetcher, prompt: UserPrompt | None = None
    ) -> None:
        self._key = key
        self._tokens = tokens
        self._fetcher = fetcher
        self._prompt = prompt
        self._lock = AsyncExitStack()

    async def run(self, steps: Steps[T]) -> T:
        """Run *steps* to their end, and return their result.

        An exception of a step is raised in the flow, which may handle it.

        Raises:
            FlowFailed: The flow failed.
            TokensUnavailable: The storage cannot be used.
        """
        try:
            outcome: Any = None
            error: Exception | None = None
            while True:
                try:
                    step = steps.send(outcome) if error is None else steps.throw(error)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                try:
                    outcome, error = await self._perform(step), None
                except Exception as failure:  # of the storage, or of the user's function
                    error = failure
        finally:
            steps.close()
            # A lock that is not released holds up the other processes until it expires.
            await run_to_completion(self._close())

    async def _perform(self, step: Step) -> object:
        match step:
            case Fetch():
                return await self._fetcher.fetch(step)
            case Load():
                return await self._tokens.get(self._key)
            case Swap():
                return await self._tokens.swap(self._key, step.old, step.new)
            case Lock():
                return await self._lock.enter_async_context(self._tokens.lock(self._key))
            case Listen():
                return await self._user().listen(step)
            case Ask():
                return await self._user().ask(step)
            case Unlock():
                await self._lock.aclose()
                return None
            case Call():
                result = step.function()
                return await result if isawaitable(result) else result

    def _user(self) -> UserPrompt:
        if self._prompt is None:
            raise FlowFailed("a login is needed, and the user cannot be asked here")
        return self._prompt

    async def _close(self) -> None:
        try:
            await self._lock.aclose()
        finally:
            if self._prompt is not None:
                await self._prompt.close()
            await self._fetcher.close()
