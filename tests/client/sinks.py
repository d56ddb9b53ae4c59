"""A transport sink that records, and messages to send."""

import asyncio
import json
from typing import Any

from genmcp.client.errors import ClientError
from genmcp.core.client.events import SendMessage

MODERN = "2026-07-28"
LEGACY = "2025-11-25"


class Recorder:
    """Records its input. A message with the request's id and no method is the response."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.request_ids: list[int | str | None] = []
        self.oversized: list[tuple[int, bytes]] = []
        self.failures: list[tuple[int | str | None, ClientError]] = []
        self.gaps = 0
        self.waits: list[tuple[int | str | None, bool]] = []
        self.ended_sessions: list[ClientError] = []
        self._changed = asyncio.Event()

    def on_message(self, message: bytes, request_id: int | str | None = None) -> bool:
        self.messages.append(message)
        self.request_ids.append(request_id)
        self._changed.set()
        try:
            value = json.loads(message)
        except ValueError:
            return False
        return isinstance(value, dict) and "method" not in value and value.get("id") == request_id

    def on_oversized(self, size: int, head: bytes, request_id: int | str | None = None) -> bool:
        self.oversized.append((size, head))
        self._changed.set()
        return b'"id":%d' % request_id in head if isinstance(request_id, int) else False

    def on_failure(self, id: int | str | None, error: ClientError) -> None:
        self.failures.append((id, error))
        self._changed.set()

    def on_wait(self, request_id: int | str | None, *, waiting: bool) -> None:
        self.waits.append((request_id, waiting))

    def on_lost_notifications(self) -> None:
        self.gaps += 1
        self._changed.set()

    def on_session_ended(self, error: ClientError) -> None:
        self.ended_sessions.append(error)
        self._changed.set()

    @property
    def decoded(self) -> list[Any]:
        """The messages, decoded."""
        return [json.loads(message) for message in self.messages]

    @property
    def failure(self) -> ClientError:
        """The only failure."""
        [(_, error)] = self.failures
        return error

    async def until(
        self, messages: int = 0, failures: int = 0, oversized: int = 0, gaps: int = 0
    ) -> None:
        """Wait for so many of each."""
        async with asyncio.timeout(10):
            while (
                len(self.messages) < messages
                or len(self.failures) < failures
                or len(self.oversized) < oversized
                or self.gaps < gaps
            ):
                self._changed.clear()
                await self._changed.wait()


def request(
    id: int, method: str = "tools/call", *, revision: str | None = MODERN, **params: Any
) -> SendMessage:
    """A request."""
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    name = params.get("name") if revision == MODERN else None
    return SendMessage(json.dumps(body).encode(), id, method, name, revision)


def notification(method: str, revision: str | None = LEGACY) -> SendMessage:
    """A notification."""
    body = {"jsonrpc": "2.0", "method": method}
    return SendMessage(json.dumps(body).encode(), None, method, None, revision)
