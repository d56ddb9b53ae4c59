"""`SyncClient`: the client for programs that do not use asyncio."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
)

from msgspec import UNSET

from genmcp.client.auth.base import Auth
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.errors import ClientClosed
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import ChangeStream, Notification
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.client.transports.targets import Target
from genmcp.protocol.capabilities import Implementation, ServerCapabilities

if TYPE_CHECKING:
    from genmcp.extensions.extension import Extension
    from genmcp.extensions.remote_skills import SyncSkill

T = TypeVar("T")
P = ParamSpec("P")
_DEFAULTS = ClientOptions()

A = TypeVar("A")  # the class whose methods are made blocking


class _Loop:
    """An event loop in a daemon thread, from `start` until `stop`. Owned by a `SyncClient`."""

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._runner is None:
            # With a factory, the loop does not become that of this thread as well.
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            runner.get_loop()  # made here, so that a failure is raised here
            # A daemon: a program that does not close its client can still exit.
            thread = threading.Thread(
                target=_run, args=(runner,), name="genmcp-client", daemon=True
            )
            thread.start()
            self._runner, self._thread = runner, thread

    def stop(self) -> None:
        """End the loop and the thread."""
        if self._runner is not None and self._thread is not None:
            runner, thread, self._runner, self._thread = self._runner, self._thread, None, None
            loop = runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def check(self) -> None:
        """Check that the caller can wait for the loop.

        Raises:
            RuntimeError: this is the thread of the loop, or a forked process.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a SyncClient must not be called by its own hooks and callbacks in the event loop: "
                "they would wait for themselves; use a Client"
            )
        if not self.is_here:
            raise RuntimeError(
                "the SyncClient was made before a fork: make one in the process that uses it"
            )

    @property
    def is_here(self) -> bool:
        """Whether this is the process of the thread: a fork does not copy threads."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the loop and wait for it; an interrupt, such as Ctrl-C, cancels it."""
        try:
            self.check()
            if self._runner is None:
                raise ClientClosed(self._server_name)
            future = asyncio.run_coroutine_threadsafe(work, self._runner.get_loop())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _run(runner: asyncio.Runner) -> None:
    with runner:  # its end cancels the tasks of the loop
        runner.get_loop().run_forever()


class _Bridge(Generic[A]):
    """An object with `async` methods, and the event loop in which they run."""

    _target: A
    _loop: _Loop


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Bridge[A], P], T]:
    """Return a blocking method that runs *method* of the target in the event loop."""

    @wraps(method)
    def run(self: _Bridge[A], /, *args: P.args, **options: P.kwargs) -> T:
        return self._loop.run(method(self._target, *args, **options))

    return run


class SyncClient(_Bridge[Client]):
    """A `Client` with blocking methods, which may be called from several threads.

        with SyncClient("https://example.com/mcp") as client:
            print(client.call("add", {"a": 1, "b": 2}).data)

    It runs a `Client` in an event loop in a thread of its own. Progress callbacks and `async def`
    hooks of the handler run in that loop: if they call the SyncClient, it raises RuntimeError. So
    it does in a forked process. For the arguments see `Client`.
    """

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = 600.0,
        auth: Auth | None = None,
        handler: ClientHandler | None = None,
        extensions: "Sequence[Extension]" = (),
        options: ClientOptions = _DEFAULTS,
        **unknown: Never,
    ) -> None:
        self._target = Client(
            target,
            headers=headers,
            timeout=timeout,
            auth=auth,
            handler=handler,
            extensions=extensions,
            options=options,
            **unknown,
        )
        self._loop = _Loop(str(target))
        self._turn = threading.Lock()

    def open(self) -> None:
        """Connect."""
        self._loop.check()
        with self._turn:
            self._loop.start()
            try:
                self._loop.run(self._target.open())
            except BaseException:
                self._loop.stop()
                raise

    def close(self) -> None:
        """Disconnect, and stop the thread. Does nothing in a forked process."""
        if not self._loop.is_here:
            return
        self._loop.check()
        with self._turn:
            try:
                self._loop.run(self._target.aclose())
            except ClientClosed:  # it was not open
                pass
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        """Connect; see `open`."""
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect; see `close`."""
        self.close()

    async def __aenter__(self) -> NoReturn:
        raise TypeError("a SyncClient is entered with `with SyncClient(...) as client`")

    async def __aexit__(self, *_: object) -> None:
        """Not reached: `__aenter__` says what to write."""

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._target.is_open

    @property
    def abandoned_calls(self) -> int:
        """The number of cancelled calls that the server may still process."""
        return self._target.abandoned_calls

    @property
    def revision(self) -> str:
        """The negotiated protocol revision."""
        return self._target.revision

    @property
    def server_info(self) -> Implementation | None:
        """Name and version of the server; None if it does not send them."""
        return self._target.server_info

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server."""
        return self._target.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._target.instructions

    ended = _blocking(Client.ended)
    tools = _blocking(Client.tools)
    resources = _blocking(Client.resources)
    templates = _blocking(Client.templates)
    prompts = _blocking(Client.prompts)
    call = _blocking(Client.call)
    read = _blocking(Client.read)
    prompt = _blocking(Client.prompt)
    complete = _blocking(Client.complete)
    log_level = _blocking(Client.log_level)
    ping = _blocking(Client.ping)
    discover = _blocking(Client.discover)
    request = _blocking(Client.request)
    notify = _blocking(Client.notify)

    def call_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
    ) -> "SyncTask":
        """Call a tool, and return as soon as it has a result or becomes a task."""
        call = self._target.call_task(name, arguments, timeout=timeout, idle_timeout=idle_timeout)
        return SyncTask(self._loop.run(call), self._loop)

    def task(self, id: str, *, tool: str | None = None) -> "SyncTask":
        """Return a handle of a task that this or another process has created."""
        return SyncTask(self._target.task(id, tool=tool), self._loop)

    def skills(self) -> "Sequence[SyncSkill]":
        """Return the skills that the server lists; see `Client.skills`."""
        from genmcp.extensions.remote_skills import SyncSkill  # here: most clients read none

        return [SyncSkill(each, self._loop.run) for each in self._loop.run(self._target.skills())]

    def skill(self, uri: str) -> "SyncSkill":
        """Return the skill whose `SKILL.md` has this *uri*; see `Client.skill`."""
        from genmcp.extensions.remote_skills import SyncSkill

        return SyncSkill(self._loop.run(self._target.skill(uri)), self._loop.run)

    def subscribe(self, *uris: str) -> "SyncChangeStream":
        """Return a stream of the changes of resources."""
        return SyncChangeStream(self._target.subscribe(*uris), self._loop)

    def listen(
        self, *uris: str, tools: bool = False, prompts: bool = False, resources: bool = False
    ) -> "SyncChangeStream":
        """Return a stream of the changes of lists, and of the resources *uris*."""
        stream = self._target.listen(*uris, tools=tools, prompts=prompts, resources=resources)
        return SyncChangeStream(stream, self._loop)


class SyncTask(_Bridge[TaskHandle]):
    """A `TaskHandle` with blocking methods. Returned by `SyncClient.call_task` and `.task`."""

    def __init__(self, handle: TaskHandle, loop: _Loop) -> None:
        self.id = handle.id
        self._target = handle
        self._loop = loop

    @property
    def is_over(self) -> bool:
        """Whether the task is known to have ended."""
        return self._target.is_over

    status = _blocking(TaskHandle.status)
    wait = _blocking(TaskHandle.wait)
    update = _blocking(TaskHandle.update)
    cancel = _blocking(TaskHandle.cancel)


class SyncChangeStream(_Bridge[ChangeStream]):
    """A `ChangeStream` with blocking iteration. Returned by `SyncClient.listen`."""

    def __init__(self, stream: ChangeStream, loop: _Loop) -> None:
        self._target = stream
        self._loop = loop

    @property
    def honored(self) -> Any:
        """The part of the request that the server supports."""
        return self._target.honored

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended and every change was read."""
        return self._target.is_over

    def __enter__(self) -> Self:
        """Open the stream."""
        self._loop.run(self._target.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Close the stream."""
        self._loop.run(self._target.__aexit__())

    def __iter__(self) -> Self:
        """Return the stream itself."""
        return self

    def __next__(self) -> Notification:
        """Wait for the next change."""
        found = self._loop.run(self._next())
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> Notification | None:
        return await anext(self._target, None)
