"""The connection for the commands of one event loop. It reconnects when it is lost."""

import asyncio
import logging
import random
from contextlib import suppress
from typing import Any, Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import reconnect_pause, steady
from genmcp.stores.redis.commands import LOADING, Argument, CommandQueue, Convert
from genmcp.stores.redis.scripts import SWEEP, Script
from genmcp.stores.redis.server import (
    ErrorReply,
    MovedToNode,
    RedisConnectionLost,
    RedisServerState,
    RedisWire,
)

logger = logging.getLogger("genmcp")

_MOVES: Final = 5  # between nodes of a cluster, at one attempt to connect
_SWEPT_AT_ONCE: Final = 500
_CLOSING: Final = 1.0  # seconds that `aclose` waits for commands in progress


class RedisConnection:
    """Performs the commands of one event loop. Owned by a `RedisClient`."""

    def __init__(self, state: RedisServerState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._queue = CommandQueue(state)
        self._tasks: list[asyncio.Task[None]] = []
        self._limit: asyncio.Timeout | None = None  # ends the wait for responses
        self._reason = ""  # why the connection was lost
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def run(self, script: Script, *args: Argument) -> Any:
        """Run *script* and return its response.

        Raises:
            StoreUnavailable: the server did not respond.
            ConfigurationError: the server cannot be used with these settings.
        """
        self._start()
        return await self._queue.add(script, args).future

    async def run_shared(self, script: Script, *args: Argument, then: Convert) -> Any:
        """Like `run`, for a read: the same reads in one turn of the event loop are one command.

        *then* converts the response, once for all of them.
        """
        self._start()
        return await asyncio.shield(self._queue.add_shared(script, args, then).future)

    async def ask(self, *words: str) -> Any:
        """Return the response to a plain command; None: the user has no permission for it."""
        self._start()
        command = self._queue.add(None, words)
        try:
            return await command.future
        except StoreUnavailable as error:
            if "NOPERM" in str(error):
                return None
            raise

    def close(self) -> None:
        """Reject all later commands, and end at once."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def aclose(self) -> None:
        """Reject all later commands, give those in progress a second, and end."""
        self._closed = True
        if waiting := self._queue.futures:
            await asyncio.wait(waiting, timeout=_CLOSING)
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(self._run(), name=f"commands to {self._state}"),
                self._loop.create_task(self._maintain(), name=f"maintenance of {self._state}"),
            ]

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                await self._queue.wake.wait()  # no connection is made before it is needed
                try:
                    wire = await self._connect()
                except (StoreUnavailable, ConfigurationError) as error:
                    self._queue.fail_pending(error)
                    failures += 1
                    await asyncio.sleep(reconnect_pause(failures))
                    continue
                failures = 0
                try:
                    await self._serve(wire)
                finally:
                    self._queue.lose(self._reason)
                    await wire.close()
        finally:
            self._queue.fail_pending(StoreUnavailable("the store is closed"))

    async def _maintain(self) -> None:
        """Remove expired entries, and measure the clock of the server, at intervals."""
        interval = self._state.settings.sweep_interval
        while True:
            await asyncio.sleep(interval * random.uniform(0.7, 1.3))
            with suppress(StoreUnavailable, ConfigurationError):
                looked = _SWEPT_AT_ONCE
                while looked == _SWEPT_AT_ONCE:
                    command = self._queue.add(SWEEP, (_SWEPT_AT_ONCE, "", ""))
                    time, looked, _ = await command.future
                    self._state.clock.measure(command.sent, steady(), time)

    async def _connect(self) -> RedisWire:
        """Connect, check the server, and send it the scripts.

        Raises:
            StoreUnavailable: the server cannot be reached or is not ready.
            ConfigurationError: at the first connection, it cannot be used with these settings.
        """
        state = self._state
        self._queue.token = state.new_token()
        try:
            async with asyncio.timeout(state.settings.connect_timeout):
                for _ in range(_MOVES):
                    wire = await state.connect()
                    try:
                        await self._prepare(wire)
                        return wire
                    except MovedToNode as moved:
                        await wire.close()
                        state.address.prefer(moved.host, moved.port)
                    except BaseException:
                        await wire.close()
                        raise
        except TimeoutError:
            seconds = state.settings.connect_timeout
            raise state.unavailable(f"no response within {seconds} seconds") from None
        except RedisConnectionLost as error:
            raise state.unavailable(error) from error
        raise state.unavailable("each node of the cluster refers to another one")

    async def _prepare(self, wire: RedisWire) -> None:
        state, sent = self._state, steady()
        (time,) = await wire.exchange(("TIME",))
        if isinstance(time, list):
            micros = int(time[0]) * 1_000_000 + int(time[1])
            state.clock.measure(sent, steady(), micros, at_once=True)
        fence = self._queue.fence()
        info, *replies = await wire.exchange(("INFO",), *LOADING, self._queue.words(fence))
        await state.check(wire, info)
        for reply in (time, *replies):
            if isinstance(reply, ErrorReply):
                if reply.kind == "MOVED":
                    raise MovedToNode(reply)
                if reply.kind in ("NOAUTH", "NOPERM"):
                    raise state.not_allowed(reply.text)
                raise state.unavailable(reply.text)
        state.stale.difference_update(fence.args)
        state.accept()

    async def _serve(self, wire: RedisWire) -> None:
        """Send commands and complete them, until the connection is lost."""
        writing = self._loop.create_task(self._write(wire))
        writing.add_done_callback(self._stop_after_write)
        self._reason = "the connection was lost"
        try:
            async with asyncio.timeout(None) as self._limit:
                while True:
                    self._queue.receive(await wire.receive())
        except TimeoutError:  # `_stop` was called
            pass
        except RedisConnectionLost as error:
            self._reason = f"the connection was lost: {error}"
        except MovedToNode as moved:
            self._state.address.prefer(moved.host, moved.port)
        except Exception as error:
            # A programming error here must not leave callers waiting for a task that has ended.
            self._reason = f"a response was not understood: {error!r}"
            logger.exception("%s: a response was not understood", self._state)
        finally:
            self._limit = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            writing.cancel()
            await asyncio.wait({writing})

    async def _write(self, wire: RedisWire) -> None:
        queue = self._queue
        while True:
            await queue.wake.wait()
            if data := queue.next_batch():
                if self._timer is None:
                    self._timer = self._loop.call_at(queue.sent[0].deadline, self._check_overdue)
                await wire.send(data)

    def _check_overdue(self) -> None:
        self._timer = None
        if not self._queue.sent:
            return
        if (deadline := self._queue.sent[0].deadline) > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._check_overdue)
        else:
            self._stop(f"no response within {self._state.settings.timeout} seconds")

    def _stop_after_write(self, writing: "asyncio.Task[None]") -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self._stop(f"the connection was lost: {error}")

    def _stop(self, reason: str) -> None:
        """Make `_serve` return."""
        if self._limit is not None:
            self._reason = reason
            self._limit.reschedule(self._loop.time())
