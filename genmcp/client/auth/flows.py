"""Authorization by flows: performed step by step, and shared by all who need them."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any, Final, TypeAlias, TypeVar

from genmcp.auth.fetcher import Fetcher
from genmcp.auth.single_flight import SingleFlight
from genmcp.cancellation import run_to_completion
from genmcp.client.auth.asking import UserPrompt
from genmcp.client.auth.base import Authorization, RejectedRequest
from genmcp.client.auth.tokens import TokenStorage
from genmcp.client.transports.base import OnWait
from genmcp.core.auth import steps as step_types
from genmcp.core.auth.challenges import parse_challenges
from genmcp.core.auth.flow import RejectedAttempt, rejected, usable
from genmcp.core.auth.metadata import same_origin
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import Failure, FlowFailed, FlowOptions, Step, Steps

T = TypeVar("T")
_Place: TypeAlias = tuple[asyncio.AbstractEventLoop, str]  # the second one is the URL of a server

_DECISIVE: Final = ("error", "scope", "resource_metadata")
"""The parameters of a challenge that a flow depends on. Others may differ for each request."""
_LOCKED_TIMEOUT: Final = 30.0  # seconds; others wait for the lock of a record for a minute
_CLOSE_TIMEOUT: Final = 2.0  # seconds in which a renewal may end when its connection is closed
_NO_TOKEN: Final[Mapping[str, str]] = {}


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
            FlowFailed: the flow failed.
            TokensUnavailable: the storage cannot be used.
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
            case step_types.Fetch():
                return await self._fetcher.fetch(step)
            case step_types.Load():
                return await self._tokens.load(self._key)
            case step_types.Locked():
                async with self._tokens.lock(self._key):
                    return await run_to_completion(self._run_in_time(step.steps))
            case step_types.Save():
                await self._tokens.save(self._key, step.record)
            case step_types.Listen():
                return await self._user().listen(step)
            case step_types.Ask():
                return await self._user().ask(step)
            case step_types.Call():
                result = step.function()
                return await result if isawaitable(result) else result
        return None

    async def _run_in_time(self, steps: Steps[T]) -> T:
        try:
            async with asyncio.timeout(_LOCKED_TIMEOUT) as limit:
                return await self._run(steps)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"the token was not renewed and stored within {_LOCKED_TIMEOUT:g} s"
            raise FlowFailed(text, Failure.UNAVAILABLE) from None

    def _user(self) -> UserPrompt:
        if self._prompt is None:
            raise LoginNeeded("a login is needed, and the user cannot be asked here")
        return self._prompt

    async def _close(self) -> None:
        if self._prompt is not None:
            await self._prompt.close()
        await self._fetcher.close()


class SharedFlows:
    """Runs equal flows once for all that wait for them. Owned by an `Authorizer`."""

    def __init__(self) -> None:
        self._flights: SingleFlight[Any] = SingleFlight()
        self._queues: dict[Hashable, list[asyncio.Lock]] = {}
        self._asking: set[_Place] = set()  # those whose login asks the user
        self._waiting: list[tuple[_Place, OnWait]] = []

    async def run(
        self,
        kind: Hashable,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        queue: Hashable | None = None,
    ) -> T:
        """Run *work*, or wait for the same work that runs already; return its result.

        Args:
            kind: identifies the work.
            work: runs the flow.
            queue: identifies work that runs one after the other, such as the logins at one server:
                the second finds the tokens of the first. Default: runs at once.
        """

        async def queued() -> T:
            async with self.turn(queue):
                return await work()

        result: T = await self._flights.run(kind, work if queue is None else queued)
        return result

    @asynccontextmanager
    async def turn(self, queue: Hashable = "user") -> AsyncIterator[None]:
        """Wait for the blocks before this one in *queue*, in this event loop.

        Args:
            queue: identifies the queue. Default: that of all flows that ask the user.
        """
        key = (asyncio.get_running_loop(), queue)
        # The lock, once for each block that holds it or waits for it.
        users = self._queues.setdefault(key, [])
        users.append(users[0] if users else asyncio.Lock())
        try:
            async with users[0]:
                yield
        finally:
            users.pop()
            if not users:
                del self._queues[key]

    @contextmanager
    def asking(self, server: str) -> Iterator[None]:
        """Pause the timeouts of the requests that wait, in this event loop, during the block.

        Only of those at *server*: they wait for this login, or for their turn after it.
        """
        place = (asyncio.get_running_loop(), server)
        self._asking.add(place)
        self._report(place, waiting=True)
        try:
            yield
        finally:
            self._asking.discard(place)
            self._report(place, waiting=False)

    @contextmanager
    def paused(self, server: str, on_wait: OnWait) -> Iterator[None]:
        """Call *on_wait* whenever the login at *server* begins or ends to ask during the block."""
        place = (asyncio.get_running_loop(), server)
        entry = (place, on_wait)
        self._waiting.append(entry)
        try:
            if place in self._asking:
                on_wait(True)
            yield
        finally:
            self._waiting.remove(entry)
            if place in self._asking:
                on_wait(False)

    def _report(self, place: _Place, *, waiting: bool) -> None:
        for each, on_wait in [*self._waiting]:
            if each == place:
                on_wait(waiting)

    async def ended(self) -> None:
        """Wait for renewals that were cancelled, so that they store their tokens; not for long."""
        await self._flights.ended(_CLOSE_TIMEOUT)


class SentHeaders(dict[str, str]):
    """The headers of a request, and the record that their token is from."""

    def __init__(self, record: Record, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.record = record


class FlowAuthorization(Authorization):
    """Authorizes one connection by the tokens that flows obtain. Owned by its transport.

    Args:
        options: the options of the flows.
        runner: returns a runner for a flow, which may ask the user or not.
        shared: the flows of all connections.

    Attributes:
        asks: whether a flow may ask the user. The timeouts of requests are paused only meanwhile.
    """

    def __init__(
        self, options: FlowOptions, runner: Callable[[bool], FlowRunner], shared: SharedFlows
    ) -> None:
        self.options = options
        self.runner = runner
        self.shared = shared
        self.asks = options.grant is None
        self._record: Record | None = None
        self._headers: SentHeaders | None = None

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the token of the last login, renewed if it expires soon; nothing without one."""
        held = self._record
        if held is None or held.access_token is None or held.due(self.options.now()):
            kind = ("usable", self.options.url, held)
            record = await self.shared.run(kind, lambda: self.run(usable(self.options, held)))
            if self._record is held:  # otherwise a login has ended meanwhile
                self._record = record
        record = self._record
        # The transport follows no redirect to another origin. Were it to, the token stays here.
        if record is None or record.access_token is None or not same_origin(url, self.options.url):
            return _NO_TOKEN
        return self.headers_with(record, method, url)

    def headers_with(self, record: Record, method: str, url: str) -> Mapping[str, str]:
        """Return the headers of a request with the token of *record*."""
        if self._headers is None or self._headers.record is not record:
            plain = {"Authorization": f"{record.token_type} {record.access_token}"}
            self._headers = SentHeaders(record, plain)
        return self._headers

    async def rejected(self, request: RejectedRequest) -> bool:
        """Obtain another token, with a login if a caller waits for the response."""
        used = request.sent.record if isinstance(request.sent, SentHeaders) else None
        asks = request.foreground and self.asks
        rejection = RejectedAttempt(
            status=request.status,
            headers=request.headers,
            used=used,
            attempt=request.attempt,
            may_log_in=asks or self.options.grant is not None,
        )
        decisive = tuple(
            (scheme, *(params.get(name) for name in _DECISIVE))
            for scheme, params in challenges_of(request)
        )
        # One flow for all requests that were rejected for the same reason.
        kind = (self.options.url, request.status, used, request.attempt > 1, asks, decisive)
        with self.shared.paused(self.options.url, request.on_wait):
            record = await self.shared.run(
                kind,
                lambda: self.run(rejected(self.options, rejection), asks=asks),
                # Of this server only: a slow one must not hold up the renewals at the others.
                queue=self.options.url if asks else None,
            )
        if record is None:
            return False
        self._record = record
        return True

    async def close(self) -> None:
        """Let a renewal that has begun store its tokens."""
        await self.shared.ended()

    async def run(self, steps: Steps[T], *, asks: bool = False) -> T:
        """Run the steps of a flow, which may ask the user or not."""
        return await self.runner(asks).run(steps)


def challenges_of(request: RejectedRequest) -> Sequence[tuple[str, Mapping[str, str]]]:
    """Return scheme and parameters of each challenge of a rejected request."""
    values = [value for name, value in request.headers if name == "www-authenticate"]
    return [(each.scheme, each.params) for each in parse_challenges(values)]
