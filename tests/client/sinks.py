"""A sink that remembers, and messages to send."""

import asyncio
import json
from typing import Any

from genmcp.client.errors import ClientError
from genmcp.core.client.events import Send

MODERN = "2026-07-28"
LEGACY = "2025-11-25"


class Recorder:
    """Remembers what came. A request is answered by a message with its id and no method."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.abouts: list[int | str | None] = []
        self.lost: list[tuple[int, bytes]] = []
        self.failures: list[tuple[int | str | None, ClientError]] = []
        self.gaps = 0
        self.ended_sessions: list[ClientError] = []
        self._changed = asyncio.Event()

    def on_message(self, message: bytes, about: int | str | None = None) -> bool:
        self.messages.append(message)
        self.abouts.append(about)
        self._changed.set()
        try:
            value = json.loads(message)
        except ValueError:
            return False
        return isinstance(value, dict) and "method" not in value and value.get("id") == about

    def on_oversized(self, size: int, head: bytes, about: int | str | None = None) -> bool:
        self.lost.append((size, head))
        self._changed.set()
        return b'"id":%d' % about in head if isinstance(about, int) else False

    def on_failure(self, id: int | str | None, error: ClientError) -> None:
        self.failures.append((id, error))
        self._changed.set()

    def on_lost_notifications(self) -> None:
        self.gaps += 1
        self._changed.set()

    def on_session_ended(self, error: ClientError) -> None:
        self.ended_sessions.append(error)
        self._changed.set()

    @property
    def said(self) -> list[Any]:
        """The messages, read."""
        return [json.loads(message) for message in self.messages]

    @property
    def failure(self) -> ClientError:
        """The only failure there was."""
        [(_, error)] = self.failures
        return error

    async def until(
        self, messages: int = 0, failures: int = 0, lost: int = 0, gaps: int = 0
    ) -> None:
        """Wait for so many of each."""
        async with asyncio.timeout(10):
            while (
                len(self.messages) < messages
                or len(self.failures) < failures
                or len(self.lost) < lost
                or self.gaps < gaps
            ):
                self._changed.clear()
                await self._changed.wait()


def request(
    id: int, method: str = "tools/call", *, revision: str | None = MODERN, **params: Any
) -> Send:
    """A request."""
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    name = params.get("name") if revision == MODERN else None
    return Send(json.dumps(body).encode(), id, method, name, revision)


def notification(method: str, revision: str | None = LEGACY) -> Send:
    """A notification."""
    body = {"jsonrpc": "2.0", "method": method}
    return Send(json.dumps(body).encode(), None, method, None, revision)
