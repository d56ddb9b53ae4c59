"""What a connection does beside the requests of its callers."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context

from genmcp.client.complaints import Complaints
from genmcp.client.errors import ClientClosed, ClientError, ProcessExited
from genmcp.client.transports.base import Transport
from genmcp.core.client.events import Send

__all__ = ["Alarm", "Background"]

logger = logging.getLogger("genmcp.client")

_GREETING = 5.0  # seconds in which a server has to accept `notifications/initialized`


class Alarm:
    """Calls *ring* at a time of the event loop, or somewhat before; `due` is when, if it is set."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.due: float | None = None
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        """Ring at *due*, if it is not to ring before that anyway."""
        if due is None or (self.due is not None and self.due <= due):
            return
        self.stop()
        self.due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._go_off)

    def stop(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self.due = self._timer = None

    def _go_off(self) -> None:
        self.due = self._timer = None
        self._ring()


class Background:
    """Sends what no caller waits for, each message in an asyncio.Task of its own.

    What comes in response is nobody's either: it must not be taken, by the context variables, for
    that of the caller in whose time it was sent.
    """

    def __init__(self, transport: Transport, complaints: Complaints) -> None:
        self._complaints = complaints
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: asyncio.Task[None] | None = None

    def send(self, message: Send) -> None:
        """Send *message*, and return at once."""
        task = asyncio.get_running_loop().create_task(self._send(message), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if message.method == "notifications/initialized":
            self._greeting = task

    @property
    def is_greeting(self) -> bool:
        """Whether `notifications/initialized` is under way."""
        return self._greeting is not None and not self._greeting.done()

    async def greeted(self) -> None:
        """Wait until it is not, or has taken so long that it is not waited for any more."""
        greeting = self._greeting
        if greeting is not None:
            await asyncio.wait((greeting,), timeout=_GREETING)
            if self._greeting is greeting:
                self._greeting = None

    async def end(self) -> None:
        """Send no more of what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, message: Send) -> None:
        try:
            await self._transport.send(message)
        except (ClientClosed, ProcessExited) as error:  # who uses the connection learns of it
            logger.debug("%s was not sent: %s", message.method or "an answer", error)
        except ClientError as error:
            what = message.method or "an answer"
            self._complaints.add(error, f"{what} could not be sent: {error}")
