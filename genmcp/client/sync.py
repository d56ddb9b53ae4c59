"""`SyncClient`: the client for programs that do not use asyncio."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import UNSET

from genmcp.client.auth.base import Auth
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.errors import ClientClosed, ClientError, ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import ChangeStream, Notification
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.targets import Target
from genmcp.protocol.capabilities import DiscoverResult, Implementation, ServerCapabilities
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.prompts import Completion, GetPromptResult, PromptDefinition, Reference
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.protocol.tasks import DetailedTask
from genmcp.protocol.tools import CallToolResult, ToolDefinition

T = TypeVar("T")

_DEFAULTS = ClientOptions()


class _Loop:
    """An event loop in a daemon thread, from `start` until `stop`. Owned by a `SyncClient`."""

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._stop: asyncio.Event

    def start(self) -> None:
        """Start the thread.

        Raises:
            ConnectError: No event loop can be created, such as with too many open files.
        """
        started = threading.Event()
        # A daemon: a program that does not close its client can still exit.
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="genmcp-client", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._loop is None:
            self._thread.join()
            reason = f"no event loop can be created: {self._error}"
            raise ConnectError(self._server_name, reason) from self._error

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def check(self) -> None:
        """Check that the caller can wait for the loop.

        Raises:
            RuntimeError: This is the thread of the loop, or a forked process.
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
            if self._loop is None:
                raise ClientClosed(self._server_name)
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
    """A `Client` with blocking methods, which may be called from several threads.

        with SyncClient("https://example.com/mcp") as client:
            print(client.call("add", {"a": 1, "b": 2}).data)

    It runs a `Client` in an event loop in a thread of its own. Progress callbacks and `async def`
    hooks of the handler run in that loop: if they call the SyncClient, it raises RuntimeError. So
    it does in a forked process. For arguments and errors see `Client`.
    """

    def __init__(
        self,
        target: Target,
        *,
        handler: ClientHandler | None = None,
        options: ClientOptions = _DEFAULTS,
        auth: Auth | None = None,
    ) -> None:
        self._client = Client(target, handler=handler, options=options, auth=auth)
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
        """Disconnect, and stop the thread. Does nothing in a forked process."""
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
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._client.is_open

    @property
    def abandoned_calls(self) -> int:
        """The number of cancelled calls that the server may still process."""
        return self._client.abandoned_calls

    def ended(self) -> ClientError | None:
        """Wait until the connection ends; see `Client.ended`."""
        return self._run(self._client.ended())

    @property
    def revision(self) -> str:
        """The negotiated protocol revision."""
        return self._client.revision

    @property
    def server_info(self) -> Implementation | None:
        """Name and version of the server; None if it does not send them."""
        return self._client.server_info

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server."""
        return self._client.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._client.instructions

    def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools of the server, all pages together, as do the other lists."""
        return self._run(self._client.tools())

    def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources of the server."""
        return self._run(self._client.resources())

    def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates of the server."""
        return self._run(self._client.templates())

    def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts of the server."""
        return self._run(self._client.prompts())

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
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
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
    ) -> "SyncTask":
        """Call a tool, and return as soon as it has a result or becomes a task."""
        call = self._client.call_task(name, arguments, timeout=timeout, idle_timeout=idle_timeout)
        return SyncTask(self, self._run(call))

    def task(self, id: str, *, tool: str | None = None) -> "SyncTask":
        """Return a handle of a task that this or another process has created."""
        return SyncTask(self, self._client.task(id, tool=tool))

    def read(self, uri: str, *, timeout: Timeout = UNSET) -> ReadResourceResult:
        """Read a resource."""
        return self._run(self._client.read(uri, timeout=timeout))

    def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Timeout = UNSET
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
        """Return completions of an argument of a prompt, or a variable of a resource template."""
        return self._run(self._client.complete(reference, argument, value, context))

    def subscribe(self, *uris: str) -> "SyncChangeStream":
        """Return a stream of the changes of resources."""
        return SyncChangeStream(self, self._client.subscribe(*uris))

    def listen(
        self, *uris: str, tools: bool = False, prompts: bool = False, resources: bool = False
    ) -> "SyncChangeStream":
        """Return a stream of the changes of lists, and of the resources *uris*."""
        return SyncChangeStream(
            self, self._client.listen(*uris, tools=tools, prompts=prompts, resources=resources)
        )

    def log_level(self, level: LoggingLevel) -> None:
        """Receive log messages of *level* and above from now on."""
        self._run(self._client.log_level(level))

    def ping(self) -> None:
        """Check that the server responds."""
        self._run(self._client.ping())

    def discover(self) -> DiscoverResult:
        """Return the description of the server."""
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
    """A `TaskHandle` with blocking methods. Returned by `SyncClient.call_task` and `.task`."""

    def __init__(self, client: SyncClient, handle: TaskHandle) -> None:
        self.id = handle.id
        self._handle = handle
        self._run = client._run

    def status(self) -> DetailedTask:
        """Get the state of the task from the server."""
        return self._run(self._handle.status())

    def wait(
        self, *, progress: ProgressCallback | None = None, timeout: Timeout = UNSET
    ) -> CallToolResult:
        """Wait for the result."""
        return self._run(self._handle.wait(progress=progress, timeout=timeout))

    def update(self, answers: Mapping[str, Any]) -> None:
        """Answer input requests of the task."""
        self._run(self._handle.update(answers))

    def cancel(self) -> None:
        """Ask the server to cancel the task."""
        self._run(self._handle.cancel())


class SyncChangeStream:
    """A `ChangeStream` with blocking iteration. Returned by `SyncClient.listen`."""

    def __init__(self, client: SyncClient, stream: ChangeStream) -> None:
        self._stream = stream
        self._run = client._run

    @property
    def honored(self) -> Any:
        """The part of the request that the server supports."""
        return self._stream.honored

    def __enter__(self) -> "SyncChangeStream":
        """Open the stream."""
        self._run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Close the stream."""
        self._run(self._stream.__aexit__())

    def __iter__(self) -> "SyncChangeStream":
        """Return the stream itself."""
        return self

    def __next__(self) -> Notification:
        """Wait for the next change."""
        found = self._run(self._next())
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> Notification | None:
        return await anext(self._stream, None)
