"""The same client for programs that do not use asyncio."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import UNSET

from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.requests import Wait
from genmcp.client.subscriptions import ChangeStream, Notification
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.targets import Target
from genmcp.protocol.capabilities import DiscoverResult, Implementation, ServerCapabilities
from genmcp.protocol.completion import Completion, Reference
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.prompts import GetPromptResult, PromptDefinition
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.protocol.tasks import DetailedTask
from genmcp.protocol.tools import CallToolResult, ToolDefinition

__all__ = ["SyncChangeStream", "SyncClient", "SyncTask"]

T = TypeVar("T")

_USUAL = ClientOptions()


class _Loop:
    """An event loop in a thread of its own, from `start` until `stop`."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._stop: asyncio.Event

    def start(self) -> None:
        """Begin.

        Raises:
            ConnectError: no loop can be made: there are too many open files, for one.
        """
        started = threading.Event()
        # A daemon: a program that forgets to close its client can still end.
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="genmcp-client", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._loop is None:
            self._thread.join()
            reason = f"no event loop can be made: {self._error}"
            raise ConnectError(self._where, reason) from self._error

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def check(self) -> None:
        """See whether work can be waited for here.

        Raises:
            RuntimeError: not in the loop's own thread, nor in a process that was forked off.
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
        """Whether this is the process it was made in; a fork takes no threads along."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* there and wait for it; what interrupts the waiting cancels it."""
        try:
            self.check()
            if self._loop is None:
                raise ClientClosed(self._where)
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def _main(self, started: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(started))
        except Exception as error:
            self._error = error
        finally:
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        started.set()
        await self._stop.wait()


class SyncClient:
    """A `Client` whose methods wait, for scripts; they may be called from several threads.

        with SyncClient("https://example.com/mcp") as client:
            print(client.call("add", {"a": 1, "b": 2}).data)

    The client runs in an event loop of its own, in a thread of its own, and so do callbacks of
    progress and those hooks of its handler that are an `async def`: they must not call the client,
    which raises RuntimeError then, as it does in a process that was forked off. What is not said
    here is as with `Client`.
    """

    def __init__(
        self,
        target: Target,
        *,
        handler: ClientHandler[Any] | None = None,
        options: ClientOptions = _USUAL,
    ) -> None:
        self._client = Client(target, handler=handler, options=options)
        self._loop = _Loop(str(target))
        self._turn = threading.Lock()

    def open(self) -> None:
        """Connect."""
        self._loop.check()
        with self._turn:
            if not self._loop.is_running:
                self._loop.start()
            try:
                self._run(self._client.open())
            except BaseException:
                self._loop.stop()
                raise

    def close(self) -> None:
        """Disconnect, and end the thread; nothing happens in a process that was forked off."""
        if not self._loop.is_here:
            return
        self._loop.check()
        with self._turn:
            if self._loop.is_running:
                try:
                    self._run(self._client.close())
                finally:
                    self._loop.stop()

    def __enter__(self) -> "SyncClient":
        """Connect; see `open`."""
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect; see `close`."""
        self.close()

    @property
    def revision(self) -> str:
        """The revision that is spoken."""
        return self._client.revision

    @property
    def server_info(self) -> Implementation | None:
        """Who the server says it is, if it does."""
        return self._client.server_info

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server can do."""
        return self._client.capabilities

    @property
    def instructions(self) -> str | None:
        """How the server is to be used, if it says so."""
        return self._client.instructions

    def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools the server lists, on all pages; so do the other lists."""
        return self._run(self._client.tools())

    def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources the server lists."""
        return self._run(self._client.resources())

    def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates the server lists."""
        return self._run(self._client.templates())

    def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts the server lists."""
        return self._run(self._client.prompts())

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
    ) -> CallToolResult:
        """Call a tool; see `Client.call`."""
        return self._run(
            self._client.call(
                name, arguments, progress=progress, timeout=timeout, idle_timeout=idle_timeout
            )
        )

    def call_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Wait = UNSET,
        idle_timeout: Wait = UNSET,
    ) -> "SyncTask":
        """Call a tool, and return when it has a result or is a task."""
        call = self._client.call_task(name, arguments, timeout=timeout, idle_timeout=idle_timeout)
        return SyncTask(self, self._run(call))

    def task(self, id: str, *, tool: str | None = None) -> "SyncTask":
        """Return a handle of a task that was begun before."""
        return SyncTask(self, self._client.task(id, tool=tool))

    def read(self, uri: str, *, timeout: Wait = UNSET) -> ReadResourceResult:
        """Read a resource."""
        return self._run(self._client.read(uri, timeout=timeout))

    def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Wait = UNSET
    ) -> GetPromptResult:
        """Get a prompt."""
        return self._run(self._client.prompt(name, arguments, timeout=timeout))

    def complete(
        self,
        reference: Reference,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Complete an argument of a prompt, or a variable of a resource template."""
        return self._run(self._client.complete(reference, argument, value, context))

    def subscribe(self, *uris: str) -> "SyncChangeStream":
        """Hear of changes of resources."""
        return SyncChangeStream(self, self._client.subscribe(*uris))

    def listen(
        self, *uris: str, tools: bool = False, prompts: bool = False, resources: bool = False
    ) -> "SyncChangeStream":
        """Hear of changes of lists, and of the resources *uris*."""
        return SyncChangeStream(
            self, self._client.listen(*uris, tools=tools, prompts=prompts, resources=resources)
        )

    def log_level(self, level: LoggingLevel) -> None:
        """Want log messages of *level* and above from now on."""
        self._run(self._client.log_level(level))

    def ping(self) -> None:
        """See whether the server answers."""
        self._run(self._client.ping())

    def discover(self) -> DiscoverResult:
        """Return what the server says of itself."""
        return self._run(self._client.discover())

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request of any method, and return its result."""
        return self._run(self._client.request(method, params))

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._run(self._client.notify(method, params))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)


class SyncTask:
    """A `TaskHandle` whose methods wait."""

    def __init__(self, client: SyncClient, handle: TaskHandle) -> None:
        self.id = handle.id
        self._handle = handle
        self._run = client._run

    def status(self) -> DetailedTask:
        """Ask the server how the task stands."""
        return self._run(self._handle.status())

    def wait(self, *, timeout: Wait = UNSET) -> CallToolResult:
        """Wait for the result."""
        return self._run(self._handle.wait(timeout=timeout))

    def update(self, answers: Mapping[str, Any]) -> None:
        """Answer what the task asks."""
        self._run(self._handle.update(answers))

    def cancel(self) -> None:
        """Ask the server to cancel the task."""
        self._run(self._handle.cancel())


class SyncChangeStream:
    """A `ChangeStream` whose iteration waits."""

    def __init__(self, client: SyncClient, listening: ChangeStream) -> None:
        self._listening = listening
        self._run = client._run

    @property
    def honored(self) -> Any:
        """What the server tells of, which may be less than what was asked for."""
        return self._listening.honored

    def __enter__(self) -> "SyncChangeStream":
        """Begin to listen."""
        self._run(self._listening.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self._run(self._listening.__aexit__())

    def __iter__(self) -> "SyncChangeStream":
        """Return itself."""
        return self

    def __next__(self) -> Notification:
        """Wait for the next change."""
        found = self._run(self._next())
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> Notification | None:
        return await anext(self._listening, None)
