"""What a response has still to say, sent as fast as its client reads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from genmcp.core.actions import Action, Record
from genmcp.mux.limits import Limits
from genmcp.transports.asgi import ClientLeft, Headers, Send, perform
from genmcp.transports.deadline import Deadline
from genmcp.transports.shutdown import LAST_WORDS

__all__ = ["Outgoing"]

logger = logging.getLogger("genmcp")


class Outgoing(msgspec.Struct, eq=False):
    """The actions of one response that are still to be performed.

    headers: go out with the response. keep: keeps records, before what they say is sent. left:
    is told when the client has closed the connection, or reads nothing for `limits.stall`
    seconds. said: is told when all there was has been sent. spoke: when that was last, by the
    loop's clock. begun: whether anything was.
    """

    send: Send
    headers: Headers
    limits: Limits
    keep: Callable[[Sequence[Record]], Awaitable[None]]
    left: Callable[[], None]
    said: Callable[[], None]
    spoke: float = 0.0
    begun: bool = False
    _ready: list[Action] = msgspec.field(default_factory=list)
    _size: int = 0
    _writes: bool = False
    _writer: "asyncio.Task[None] | None" = None
    _wake: asyncio.Event | None = None
    _sent: asyncio.Event | None = None
    _finishing: bool = False
    _stopping: bool = False
    _deadline: Deadline | None = None

    def push(self, actions: Sequence[Action], size: int = 0) -> None:
        """Take in *actions*, which are about *size* bytes, to be sent with what is there."""
        self._ready += actions
        self._size += size
        if self._writes and actions:
            self._wake_writer()

    def write(self) -> None:
        """From now on, send what is there and whatever comes as soon as the loop is free."""
        self._writes = True
        self.spoke = asyncio.get_running_loop().time()
        if self._ready:
            self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake is None:
            self._wake = asyncio.Event()
            self._writer = asyncio.get_running_loop().create_task(self._write(self._wake))
        self._wake.set()

    @property
    def full(self) -> bool:
        """Whether some of it should be read before more is said."""
        return self._size > self.limits.buffer

    async def room(self) -> None:
        """Wait until the client has read what is there for it, or is given up."""
        while self.full and not self._finishing:
            if self._sent is None:
                self._sent = asyncio.Event()
            self._sent.clear()
            await self._sent.wait()

    def pause(self) -> None:
        """Stop waking the writer: `finish` is called next and sends the rest."""
        self._writes = False

    async def finish(self) -> None:
        """Send what is left."""
        self._writes = False
        self._finishing = True
        if self._wake is None or self._writer is None:
            await self._flush()
        else:
            self._wake.set()
            await self._writer

    def hasten(self) -> None:
        """Give the client no more than a moment to read what is left."""
        self._stopping = True
        if self._deadline is not None:
            self._deadline.hasten(LAST_WORDS)

    def close(self) -> list["asyncio.Task[None]"]:
        """Write no more, and return what is to be waited for; nobody has to wait for room."""
        self._finishing = True
        if self._sent is not None:
            self._sent.set()
        # The owner refers to this and its methods are stored here: without this, each call would
        # leave a reference cycle to the garbage collector.
        self.keep, self.left, self.said = _keep_nothing, _nothing, _nothing
        writer, self._writer = self._writer, None
        if writer is None or writer.done():
            return []
        writer.cancel()
        return [writer]

    async def _write(self, wake: asyncio.Event) -> None:
        while self._ready or not self._finishing:
            wake.clear()
            try:
                await self._flush()
            finally:
                if self._sent is not None:
                    self._sent.set()
            if not self._ready and not self._finishing:
                await wake.wait()

    async def _flush(self) -> None:
        """Send all there is, but give the connection up if too little of it is read."""
        self._deadline = Deadline(LAST_WORDS if self._stopping else self.limits.stall)
        try:
            await self._deadline.bound(self._perform())
        except TimeoutError:
            logger.info("a client reads nothing any more: its connection is given up")
            self.left()
        except ClientLeft:
            self.left()
        except Exception:
            self.left()  # a defect of the host, which gets it back
            raise
        self.said()

    async def _perform(self) -> None:
        actions, self._ready = self._ready, []
        self._size = 0
        if actions:
            records = [action for action in actions if type(action) is Record]
            if records:
                await self.keep(records)  # what is sent can be resumed from at once
            self.begun = True
            await perform(actions, self.send, self.headers)
            self.spoke = asyncio.get_running_loop().time()


async def _keep_nothing(records: Sequence[Record]) -> None:
    """Keep no *records*: the response is over."""


def _nothing() -> None:
    """Do nothing: the response is over."""
