"""`SyncClient`: the client for programs that do not use asyncio."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self

from msgspec import UNSET

from genmcp.client.auth.base import Auth
from genmcp.client.blocking import BackgroundLoop, Bridge, blocking
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.errors import ClientClosed
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import ChangeStream, Notification
from genmcp.client.tasks import TaskHandle
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.client.transports.targets import Target, target_name
from genmcp.protocol.capabilities import Implementation, ServerCapabilities

if TYPE_CHECKING:
    from genmcp.extensions.extension import Extension
    from genmcp.extensions.remote_skills import SyncSkill

_DEFAULTS = ClientOptions()


class SyncClient(Bridge[Client]):
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
        self._loop = BackgroundLoop(target_name(target))
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

    ended = blocking(Client.ended)
    tools = blocking(Client.tools)
    resources = blocking(Client.resources)
    templates = blocking(Client.templates)
    prompts = blocking(Client.prompts)
    call = blocking(Client.call)
    read = blocking(Client.read)
    prompt = blocking(Client.prompt)
    complete = blocking(Client.complete)
    log_level = blocking(Client.log_level)
    ping = blocking(Client.ping)
    discover = blocking(Client.discover)
    request = blocking(Client.request)
    notify = blocking(Client.notify)

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

        return [SyncSkill(each, self._loop) for each in self._loop.run(self._target.skills())]

    def skill(self, uri: str) -> "SyncSkill":
        """Return the skill whose `SKILL.md` has this *uri*; see `Client.skill`."""
        from genmcp.extensions.remote_skills import SyncSkill

        return SyncSkill(self._loop.run(self._target.skill(uri)), self._loop)

    def subscribe(self, *uris: str) -> "SyncChangeStream":
        """Return a stream of the changes of resources."""
        return SyncChangeStream(self._target.subscribe(*uris), self._loop)

    def listen(
        self, *uris: str, tools: bool = False, prompts: bool = False, resources: bool = False
    ) -> "SyncChangeStream":
        """Return a stream of the changes of lists, and of the resources *uris*."""
        stream = self._target.listen(*uris, tools=tools, prompts=prompts, resources=resources)
        return SyncChangeStream(stream, self._loop)


class SyncTask(Bridge[TaskHandle]):
    """A `TaskHandle` with blocking methods. Returned by `SyncClient.call_task` and `.task`."""

    def __init__(self, handle: TaskHandle, loop: BackgroundLoop) -> None:
        self.id = handle.id
        self._target = handle
        self._loop = loop

    @property
    def is_over(self) -> bool:
        """Whether the task is known to have ended."""
        return self._target.is_over

    status = blocking(TaskHandle.status)
    wait = blocking(TaskHandle.wait)
    update = blocking(TaskHandle.update)
    cancel = blocking(TaskHandle.cancel)


class SyncChangeStream(Bridge[ChangeStream]):
    """A `ChangeStream` with blocking iteration. Returned by `SyncClient.listen`."""

    def __init__(self, stream: ChangeStream, loop: BackgroundLoop) -> None:
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
