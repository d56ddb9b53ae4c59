"""Authorization of a connection by flows, and flows that are shared by all who need them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from genmcp._core.auth.challenges import parse_challenges
from genmcp._core.auth.flow import RejectedAttempt, rejected, usable
from genmcp._core.auth.metadata import same_origin
from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import FlowOptions, Steps
from genmcp.auth.shared import SingleFlight
from genmcp.client.auth.base import Authorization, RejectedRequest
from genmcp.client.auth.runner import FlowRunner

T = TypeVar("T")

_DECISIVE: Final = ("error", "scope", "resource_metadata")
"""The parameters of a challenge that a flow depends on. Others may differ for each request."""
_NO_TOKEN: Final[Mapping[str, str]] = {}


class _Turns:
    """A lock, and the number of tasks that hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


class SharedFlows:
    """Runs equal flows once for all that wait for them. Owned by an `Authorizer`."""

    def __init__(self) -> None:
        self._flights: SingleFlight[Any] = SingleFlight()
        self._turns: dict[Hashable, _Turns] = {}

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
        turns = self._turns.setdefault(key, _Turns())
        turns.length += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.length -= 1
            if not turns.length:
                del self._turns[key]


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
        interactive: whether flows may wait for the user.
    """

    def __init__(
        self, options: FlowOptions, runner: Callable[[bool], FlowRunner], shared: SharedFlows
    ) -> None:
        self.options = options
        self.runner = runner
        self.shared = shared
        self.interactive = options.grant is None
        self._record: Record | None = None
        self._headers: SentHeaders | None = None

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the token of the last login, renewed if it expires soon; nothing without one."""
        record = self._record
        if record is None or record.access_token is None or record.due(self.options.now()):
            record = await self._renewed(record)
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
        rejection = RejectedAttempt(
            status=request.status,
            headers=request.headers,
            used=used,
            attempt=request.attempt,
            interactive=request.foreground and self.interactive,
        )
        # One flow for all requests that were rejected for the same reason.
        kind = (
            "rejected",
            self.options.url,
            request.status,
            used,
            request.attempt > 1,
            request.foreground,
            _decisive(request),
        )
        asks = request.foreground and self.interactive
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

    async def run(self, steps: Steps[T], *, asks: bool = False) -> T:
        """Run the steps of a flow, which may ask the user or not."""
        return await self.runner(asks).run(steps)

    async def _renewed(self, held: Record | None) -> Record | None:
        kind = ("usable", self.options.url, held)
        record = await self.shared.run(kind, lambda: self.run(usable(self.options, held)))
        if self._record is held:  # otherwise a login has ended meanwhile
            self._record = record
        return self._record


def challenges_of(request: RejectedRequest) -> Sequence[tuple[str, Mapping[str, str]]]:
    """Return scheme and parameters of each challenge of a rejected request."""
    values = [value for name, value in request.headers if name == "www-authenticate"]
    return [(each.scheme, each.params) for each in parse_challenges(values)]


def _decisive(request: RejectedRequest) -> Hashable:
    return tuple(
        (scheme, *(params.get(name) for name in _DECISIVE))
        for scheme, params in challenges_of(request)
    )
