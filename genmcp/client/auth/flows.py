"""Authorization of a connection by flows, and flows that are shared by all who need them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from genmcp._core.auth.challenges import parse_challenges
from genmcp._core.auth.flow import RejectedAttempt, usable
from genmcp._core.auth.metadata import same_origin
from genmcp._core.auth.record import Record
from genmcp._core.auth.steps import FlowOptions, Steps
from genmcp.cancellation import cancel_and_wait
from genmcp.client.auth.base import Authorization, RejectedRequest
from genmcp.client.auth.dpop import DpopKeys
from genmcp.client.auth.runner import FlowRunner

T = TypeVar("T")

Rejected = Callable[[FlowOptions, RejectedAttempt], Steps[Record | None]]
"""The flow after a 401 or 403, such as `genmcp._core.auth.flow.rejected`."""

Usable = Callable[[FlowOptions, Record | None], Steps[Record | None]]
"""The flow before a request, such as `genmcp._core.auth.flow.usable`."""

_MAX_PROOFS: Final = 3  # attempts with a nonce for one request
_DECISIVE: Final = ("error", "scope", "resource_metadata")
"""The parameters of a challenge that a flow depends on. Others may differ for each request."""
_NO_TOKEN: Final[Mapping[str, str]] = {}


class _RunningFlow:
    """A flow that runs, and the number of tasks that wait for its result."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.task = task
        self.waiting = 0


class SharedFlows:
    """Runs equal flows once for all that wait for them. Owned by an `Authorizer`.

    A flow runs in a task of its own, so that a request that is cancelled does not end the login
    that others wait for. It is cancelled with the last of them.
    """

    def __init__(self) -> None:
        # By event loop as well: a `SyncClient` has one of its own.
        self._running: dict[Hashable, _RunningFlow] = {}
        self._queues: dict[Hashable, _FlowQueue] = {}

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
        loop = asyncio.get_running_loop()
        key = (loop, kind)
        running = self._running.get(key)
        if running is None:
            task = loop.create_task(work() if queue is None else self._queued(queue, work))
            running = self._running[key] = _RunningFlow(task)
            task.add_done_callback(partial(self._end, key, running))
        running.waiting += 1
        try:
            result: T = await asyncio.shield(running.task)
            return result
        finally:
            running.waiting -= 1
            if not running.waiting and not running.task.done():
                self._end(key, running)
                await cancel_and_wait(running.task)

    def _end(self, key: Hashable, running: _RunningFlow, _: object = None) -> None:
        if self._running.get(key) is running:  # not a later one
            del self._running[key]

    @asynccontextmanager
    async def turn(self, queue: Hashable = "user") -> AsyncIterator[None]:
        """Wait for the blocks before this one in *queue*, in this event loop.

        Args:
            queue: identifies the queue. Default: that of all flows that ask the user.
        """
        key = (asyncio.get_running_loop(), queue)
        found = self._queues.setdefault(key, _FlowQueue())
        found.length += 1
        try:
            async with found.lock:
                yield
        finally:
            found.length -= 1
            if not found.length:
                del self._queues[key]

    async def _queued(self, queue: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self.turn(queue):
            return await work()


class _FlowQueue:
    """A lock, and the number of flows that hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


class _SentHeaders(dict[str, str]):
    """The headers of a request, the record that their token is from, and the nonce of the proof."""

    def __init__(
        self, record: Record, headers: Mapping[str, str], nonce: str | None = None
    ) -> None:
        super().__init__(headers)
        self.record = record
        self.nonce = nonce


class FlowAuthorization(Authorization):
    """Authorizes one connection by the tokens that flows obtain. Owned by its transport.

    Args:
        options: the options of the flows; the `prover` also makes the proofs of the requests.
        runner: returns a runner for a flow, which may ask the user or not.
        shared: the flows of all connections.
        rejected: the flow after a 401 or 403.
        usable: the flow before a request whose token is due.
    """

    interactive: ClassVar[bool] = True

    def __init__(
        self,
        options: FlowOptions,
        runner: Callable[[bool], FlowRunner],
        shared: SharedFlows,
        rejected: Rejected,
        usable: Usable = usable,
    ) -> None:
        self._options = options
        self._usable = usable
        self._keys = options.prover if isinstance(options.prover, DpopKeys) else None
        self._runner = runner
        self._shared = shared
        self._rejected = rejected
        self._record: Record | None = None
        self._headers: _SentHeaders | None = None

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the token of the last login, renewed if it expires soon; nothing without one."""
        record = self._record
        if record is None or record.access_token is None or record.due(self._options.now()):
            record = await self._renewed(record)
        # The transport follows no redirect to another origin. Were it to, the token stays here.
        if record is None or record.access_token is None or not self._is_server(url):
            return _NO_TOKEN
        return self._headers_for(record, method, url)

    async def rejected(self, request: RejectedRequest) -> bool:
        """Obtain another token, with a login if a caller waits for the response."""
        used = request.sent.record if isinstance(request.sent, _SentHeaders) else None
        if (again := self._proves_again(request)) is not None:
            return again
        rejection = RejectedAttempt(
            status=request.status,
            headers=request.headers,
            used=used,
            attempt=request.attempt,
            interactive=request.foreground,
        )
        # One flow for all requests that were rejected for the same reason.
        kind = (
            "rejected",
            self._options.url,
            request.status,
            used,
            request.attempt > 1,
            request.foreground,
            _challenge_of(request),
        )
        asks = request.foreground and self.interactive
        record = await self._shared.run(
            kind,
            lambda: self._run(self._rejected(self._options, rejection), asks=asks),
            # Of this server only: a slow one must not hold up the renewals at the others.
            queue=self._options.url if asks else None,
        )
        if record is None:
            return False
        self._record = record
        return True

    def _headers_for(self, record: Record, method: str, url: str) -> Mapping[str, str]:
        """Return the headers of a request with the token of *record*."""
        keys, token = self._keys, record.access_token
        if keys is not None and record.dpop_key is not None and token is not None:
            proven = keys.headers(method, url, token, record.dpop_key)
            return _SentHeaders(record, proven, keys.nonce(url))
        if self._headers is None or self._headers.record is not record:
            plain = {"Authorization": f"{record.token_type} {record.access_token}"}
            self._headers = _SentHeaders(record, plain)
        return self._headers

    def answered(self, url: str, headers: Mapping[str, str]) -> None:
        """Keep the nonce for the next proof."""
        if self._keys is not None and self._is_server(url):
            self._keys.answered(url, headers.items())

    def _proves_again(self, request: RejectedRequest) -> bool | None:
        """Return whether another proof helps; None if the proof is not what was rejected."""
        if self._keys is None or not isinstance(request.sent, _SentHeaders):
            return None
        errors = {params.get("error") for scheme, params in _challenges_of(request)}
        if "use_dpop_nonce" in errors:
            # RFC 9449, 9. Once for each nonce, and not for ever at a server with always new ones.
            fresh = self._keys.nonce(request.url) != request.sent.nonce
            return fresh and request.attempt <= _MAX_PROOFS
        # Otherwise neither another token nor a login helps. And the server may have seen this very
        # proof before: a proxy has sent the request twice, and the first one was carried out.
        return False if "invalid_dpop_proof" in errors else None

    async def _renewed(self, held: Record | None) -> Record | None:
        kind = ("usable", self._options.url, held and held.generation)
        record = await self._shared.run(kind, lambda: self._run(self._usable(self._options, held)))
        if self._record is held:  # otherwise a login has ended meanwhile
            self._record = record
        return self._record

    def _is_server(self, url: str) -> bool:
        return same_origin(url, self._options.url)

    async def _run(self, steps: Steps[T], *, asks: bool = False) -> T:
        return await self._runner(asks).run(steps)


def _challenge_of(request: RejectedRequest) -> Hashable:
    return tuple(
        (scheme, *(params.get(name) for name in _DECISIVE))
        for scheme, params in _challenges_of(request)
    )


def _challenges_of(request: RejectedRequest) -> Sequence[tuple[str, Mapping[str, str]]]:
    values = [value for name, value in request.headers if name == "www-authenticate"]
    return [(each.scheme, each.params) for each in parse_challenges(values)]
