"""Channels without a server, and calls that become tasks at a moment that a test chooses."""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from genmcp._mux.performing import report
from genmcp.binding import Owner
from genmcp.channel import CallContext, CallServices, ChangeNotifier, Channel
from genmcp.core.access import Access
from genmcp.core.call import CallAction, CallPhase, Promote
from genmcp.core.client_key import LOCAL, ClientKey
from genmcp.core.request import Request
from genmcp.core.seal import Seal
from genmcp.errors import CapabilityMissing
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.stores.memory import MemoryStore


class Silent:
    """The sink of a client that receives nothing."""

    closed = False

    def watch_client(self) -> None: ...

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        return False

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        raise CapabilityMissing({})

    def begin_stream(self) -> None: ...

    def release(self, retry: int) -> None: ...


class Local:
    """The caller of a call in this process."""

    access: Access | None = None
    client_key: ClientKey = LOCAL
    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()
    detached = False

    def require_scopes(self, scopes: Sequence[str]) -> None: ...


class Recording:
    """A performer that records the actions it has begun, and has ended. failing: those that fail.

    Each takes less time than the one before.
    """

    def __init__(self, *failing: CallAction) -> None:
        self.begun: list[CallAction] = []
        self.ended: list[CallAction] = []
        self.failing = failing

    async def perform(self, action: CallAction, channel: Channel) -> None:
        self.begun.append(action)
        for _ in range(10 - len(self.begun)):
            await asyncio.sleep(0)
        if action in self.failing:
            raise RuntimeError(action.name)
        self.ended.append(action)


async def in_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run *function* in a thread."""
    return await asyncio.to_thread(function, *arguments)


async def at_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run *function* here."""
    return function(*arguments)


async def no_level(request: Request) -> LoggingLevel | None:
    """Return None: the client wants no log messages."""
    return None


async def no_result(id: str, principal: str | None) -> CallToolResult:
    """Return an empty result."""
    return CallToolResult(content=[])


def owner_in_memory() -> Callable[[str | None, str], Owner]:
    """Return what makes a client an owner of values in a store of its own."""
    store = MemoryStore()
    seal = Seal(secrets.token_bytes(32), "test", now=time.time, nonce=secrets.token_bytes)
    return lambda principal, client: Owner(store, seal, "test", principal, client)


def channel_of(
    request: Any = None,
    *,
    performer: Recording | None = None,
    phase: CallPhase = CallPhase.RUNNING,
    threads: Callable[..., Any] = at_once,
    access: Access | None = None,
) -> Channel[Any]:
    """Return the channel of *request* to a client that receives nothing."""
    context = CallContext(
        phase,
        sink=Silent(),
        caller=Local(),
        performer=performer or Recording(),
        services=CallServices(ChangeNotifier(), no_level, no_result, threads, owner_in_memory()),
    )
    return Channel(request, context, access)


async def promote(channel: Channel[Any]) -> None:
    """Make the call of *channel*, whose hook runs, a task now."""
    await asyncio.sleep(0)  # the call is registered when its hook first waits
    channel.context.sink.watch_client()
    await report(channel, Promote(secrets.token_urlsafe(20)))
    await channel.context.promotion_decided()
