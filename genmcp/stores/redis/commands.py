"""The commands of one event loop, between their callers and the connection. No I/O happens here.

The commands of one turn of the event loop are sent together, and the responses arrive in the same
order. No command waits for the response of another.

**A write that has failed must not take effect after a later one.** A connection may be lost while
the server, or the network, still holds writes that were sent on it. The process keeps the name of
that connection, and sends it in front of its next writes, on whichever connection: the server then
rejects late writes under that name (fence.lua). A write also carries the time at which its caller
gives up, after which the server rejects it. This bounds the time for which a failed write may
follow a write of another process.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from genmcp.errors import StoreFull
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages
from genmcp.stores.redis.scripts import ALL, FENCE, Script
from genmcp.stores.redis.server import (
    ErrorReply,
    MovedToNode,
    RedisConnectionLost,
    RedisServerState,
    encoded,
)

Argument: TypeAlias = str | bytes | int
Convert: TypeAlias = Callable[[Any], Any]

LOADING: Final = tuple(("SCRIPT", "LOAD", script.source) for script in ALL)
"""The commands that send the scripts to the server."""

_ATTEMPTS: Final = 2  # of a read whose connection was lost, or a write that was not performed


class RedisCommand:
    """One command and its future response.

    Attributes:
        future: completed with the response.
        deadline: when its caller gives up, by the clock of the event loop.
        sent: when it was sent, by `steady`.
    """

    __slots__ = ("args", "attempts", "deadline", "future", "outages", "script", "sent", "then")

    def __init__(
        self,
        script: Script | None,
        args: Sequence[Argument],
        deadline: float,
        then: Convert | None = None,
        outages: Outages | None = None,
    ) -> None:
        self.outages = outages  # None: it is no operation of the store
        self.script = script  # None: `args` is the command
        self.args = args
        self.deadline = deadline
        self.then = then  # converts the response, once for all that wait for it
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.attempts = 0
        self.sent = 0.0

    @property
    def is_write(self) -> bool:
        """Whether it must not be repeated after it was sent."""
        return self.script is not None and self.script.writes

    def complete(self, reply: Any) -> None:
        """Return *reply* to the caller."""
        if self.outages is not None and self.outages.failing:
            self.outages.record(None, write=self.is_write)
        if self.future.done():  # the caller was cancelled
            return
        try:
            self.future.set_result(self.then(reply) if self.then else reply)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Raise *error* for the caller."""
        if self.outages is not None:
            self.outages.record(error, write=self.is_write)
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # it need not be retrieved: the caller may be cancelled


class CommandQueue:
    """The commands that wait to be sent, and those that wait for their response.

    Owned by a `RedisConnection`.

    Attributes:
        token: the name of the present connection.
        wake: set when a command waits to be sent.
        sent: the commands without a response, in the order in which they were sent.
    """

    def __init__(self, state: RedisServerState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self.token = ""
        self.wake = asyncio.Event()
        self.sent: deque[RedisCommand] = deque()
        self._pending: deque[RedisCommand] = deque()
        self._same: dict[tuple[Any, ...], RedisCommand] = {}  # pending reads that may be shared
        self._unloaded = False  # whether the server has lost the scripts

    @property
    def futures(self) -> set["asyncio.Future[Any]"]:
        """The responses that callers wait for."""
        return {each.future for each in (*self._pending, *self.sent) if not each.future.done()}

    def add(
        self, script: Script | None, args: Sequence[Argument], then: Convert | None = None
    ) -> RedisCommand:
        """Return a new command, which is sent in this turn of the event loop.

        Without a *script*, *args* is a command that changes nothing.

        Raises:
            StoreUnavailable: too many commands wait.
        """
        settings = self._state.settings
        outages = settings.outages if script is not None else None
        command = RedisCommand(script, args, self._loop.time() + settings.timeout, then, outages)
        if len(self._pending) + len(self.sent) >= settings.max_requests:
            error = self._state.unavailable(
                f"{settings.max_requests} operations wait (max_requests)"
            )
            command.fail(error)
            raise error
        self._pending.append(command)
        self.wake.set()
        return command

    def add_shared(self, script: Script, args: Sequence[Argument], then: Convert) -> RedisCommand:
        """Return the same read of this turn of the event loop, or a new one."""
        command = self._same.get((script, *args))
        if command is None:
            command = self._same[script, *args] = self.add(script, args, then)
        return command

    def next_batch(self) -> bytes:
        """Return the pending commands as they are sent, b"" without any."""
        self.wake.clear()
        pending = [each for each in self._pending if not each.future.done()]
        self._pending.clear()
        self._same.clear()
        batch: list[RedisCommand] = []
        deadline = self._loop.time() + self._state.settings.timeout
        if self._unloaded:
            self._unloaded = False
            batch += [RedisCommand(None, load, deadline) for load in LOADING]
        if (stale := tuple(self._state.stale)) and any(each.is_write for each in pending):

            def fenced(reply: object) -> None:
                self._state.stale.difference_update(stale)

            batch.append(RedisCommand(FENCE, stale, deadline, fenced))
        batch += pending
        self.sent.extend(batch)
        now = steady()
        for each in batch:
            each.sent = now
        return b"".join(encoded(self.words(each)) for each in batch)

    def fence(self) -> RedisCommand:
        """Return the command that fences lost connections. Its response is for the caller."""
        deadline = self._loop.time() + self._state.settings.timeout
        return RedisCommand(FENCE, tuple(self._state.stale), deadline)

    def receive(self, reply: Any) -> None:
        """Complete the oldest command without a response.

        Raises:
            MovedToNode: another node of the cluster serves the store.
            RedisConnectionLost: another server has become the primary.
        """
        command = self.sent.popleft()
        if isinstance(reply, ErrorReply):
            self._receive_error(command, reply)
        else:
            command.complete(reply)

    def lose(self, reason: str) -> None:
        """Fail the writes that were sent on the lost connection, and repeat the reads."""
        sent, self.sent = self.sent, deque()
        if any(each.is_write for each in sent):
            self._state.stale.add(self.token)
        for each in sent:
            if each.is_write:
                each.fail(self._state.unavailable(reason))
            else:
                self._repeat(each, reason)

    def fail_pending(self, error: Exception) -> None:
        """Fail the commands that wait to be sent."""
        pending, self._pending = self._pending, deque()
        self._same.clear()
        self.wake.clear()
        for each in pending:
            each.fail(type(error)(str(error)))

    def words(self, command: RedisCommand) -> Sequence[Argument]:
        """Return *command* as it is sent now, on the present connection."""
        script, state = command.script, self._state
        if script is None:
            return command.args
        token, until = "", 0
        if script.writes:
            left = command.deadline - self._loop.time()
            token, until = self.token, int((state.clock.real() + left) * 1_000_000)
        skew = int(state.clock.skew * 1_000_000)
        return ("EVALSHA", script.sha, 1, state.settings.prefix, skew, token, until, *command.args)

    def _receive_error(self, command: RedisCommand, reply: ErrorReply) -> None:
        if reply.kind == "LATE":
            # The write took longer than its caller waits, or the clock of the server was set.
            self._state.clock.measure(command.sent, steady(), int(reply.text), at_once=True)
            self._repeat(command, "the write arrived too late, and was not performed")
        elif reply.kind == "NOSCRIPT":  # SCRIPT FLUSH, or a failover
            self._unloaded = True
            self._repeat(command, reply.text)
        elif reply.kind == "MOVED":
            self._repeat(command, reply.text)
            raise MovedToNode(reply)
        elif reply.kind == "OOM":
            text = "its memory is full; raise maxmemory, or lower max_bytes"
            command.fail(StoreFull(f"{self._state}: {text}"))
        else:
            kind = f"{reply.kind} " if reply.kind == "NOPERM" else ""
            command.fail(self._state.unavailable(kind + reply.text))
            if reply.kind == "READONLY":
                raise RedisConnectionLost(reply.text)

    def _repeat(self, command: RedisCommand, reason: str) -> None:
        """Send *command*, which had no effect, again; fail it with *reason* if it is too late."""
        command.attempts += 1
        if command.attempts < _ATTEMPTS and self._loop.time() < command.deadline:
            self._pending.append(command)
            self.wake.set()
        else:
            command.fail(self._state.unavailable(reason))
