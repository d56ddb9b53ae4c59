"""Clients that handle faults: they wait, retry, and reconnect to another process.

A request is retried if it was rejected temporarily, or if its process was killed. A call that was
not acknowledged is abandoned.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import msgspec

from tests.chaos.callers import (
    _ACCEPT,
    _CLIENT,
    ENDS,
    LEGACY,
    TASKS,
    Caller,
    Down,
    Message,
    Refused,
    Torn,
    _called,
    _headers,
    _last,
    _message,
    _modern,
    _result,
    _tool,
)
from tests.chaos.processes import PAUSE, Server

AGAIN = 0.1  # seconds
WHO = {"x-who": "ann"}
KEY = "io.genmcp/idempotencyKey"


class Unacknowledged(Exception):
    """The call was rejected, or its process died before it sent a task handle or an event id."""


class Client(Caller):
    """A client that makes one call. *acknowledged* is the id of its task, once it has one."""

    acknowledged: str | None = None

    async def anywhere(self, message: Message) -> Message:
        while True:
            try:
                return await super().anywhere(message)
            except Refused as refused:
                if not _passing(refused):
                    raise
                await asyncio.sleep(AGAIN)

    async def polled(self, n: int, tool: str) -> Message:
        """Call with tasks; return the value of the completed task."""
        try:
            handle = await self.begin(n, tool, self._seconds())
        except (Torn, Refused) as error:
            raise Unacknowledged from error
        self.acknowledged = handle["taskId"]
        last = await self.ended_task(n, handle["taskId"])
        value: Message = last["result"]["structuredContent"]
        return value

    async def ended_task(self, n: int, id: str) -> Message:
        """Answer the questions of a task, and return it once it has ended."""
        while (task := await self.task(id))["status"] not in ENDS:
            if task["status"] == "input_required":
                await self.answer(n, task)
            await self._think()
        return task

    async def resumed(self, n: int, tool: str) -> Message:
        """Call as in 2025, and resume with Last-Event-ID whenever the connection breaks."""
        headers = await self._session()
        call = _message("tools/call", {**_tool(n, tool, self._seconds()), "_meta": _PROGRESS}, n)
        last: str | None = None
        while True:
            server = await self._server()
            life = server.life
            try:
                async with self._opened(server, call, headers, last) as (response, _):
                    async for id, message in _events(response):
                        last = id or last
                        if message and message.get("method") == "elicitation/create":
                            await self._answered(n, message, headers)
                        elif message and message.get("id") == n:
                            return _value(message)
            except Down:
                continue
            except (httpx.TransportError, Torn) as error:
                killed = life is not None and life.killed
                assert killed or self._fleet.store_fails, f"a stream was torn: {error!r}"
                if last is None:
                    raise Unacknowledged from error
            await asyncio.sleep(AGAIN)

    async def keyed_twice(self, n: int) -> tuple[Message, Message]:
        """Send a keyed call to two servers, about when it becomes a task; return both results."""
        call = _called(n, "edge", self._random.uniform(0.2, 0.5), TASKS)
        call["params"]["_meta"][KEY] = f"key {n}"
        both = await asyncio.gather(*(self._keyed(call) for _ in range(2)))
        return both[0], both[1]

    async def _keyed(self, call: Message) -> Message:
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.3))
            try:
                response = await self._retried(call, {**_headers(call), **WHO})
                answer = _result(_last(response))
                break
            except Refused as refused:
                if not _passing(refused) and "The call was lost" not in str(refused):
                    raise
        if "taskId" in answer:
            self.acknowledged = answer["taskId"]
        while "taskId" in answer and not _has_ended(answer):
            message = {**call, "method": "tasks/get"}
            meta = {key: each for key, each in call["params"]["_meta"].items() if key != KEY}
            message["params"] = {"taskId": answer["taskId"], "_meta": meta}
            answer = await self.owned(message)
            await asyncio.sleep(PAUSE)
        return answer

    async def owned(self, message: Message) -> Message:
        """Return the result of a call with an idempotency key."""
        while True:
            try:
                return _result(_last(await self._retried(message, {**_headers(message), **WHO})))
            except Refused as refused:
                if not _passing(refused):
                    raise
                await asyncio.sleep(AGAIN)

    async def cancelled(self, n: int, tool: str) -> Message:
        """Call with tasks, cancel the task after a moment, and return the ended task."""
        try:
            handle = await self.begin(n, tool, 30.0)
        except (Torn, Refused) as error:
            raise Unacknowledged from error
        self.acknowledged = handle["taskId"]
        await self._think()
        await self.anywhere(_modern("tasks/cancel", {"taskId": handle["taskId"]}, TASKS))
        while (task := await self.task(handle["taskId"]))["status"] not in ENDS:
            await self._think()
        return task

    async def finds(self, id: str, name: str) -> bool:
        """Return whether the principal *name* can find the task *id*."""
        message = _modern("tasks/get", {"taskId": id}, TASKS)
        while True:
            try:
                await self.as_principal(name, message)
            except Refused as refused:
                if not _passing(refused):
                    return False
                await asyncio.sleep(AGAIN)
            else:
                return True

    async def as_principal(self, name: str, message: Message) -> Message:
        """Return the result of an idempotent request by the principal *name*."""
        return _result(_last(await self._retried(message, {**_headers(message), "x-who": name})))

    async def _session(self) -> Mapping[str, str]:
        params = {
            "protocolVersion": LEGACY,
            "capabilities": {"elicitation": {}},
            "clientInfo": _CLIENT,
        }
        opened = await self._retried(_message("initialize", params, 0), {})
        return {
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": LEGACY,
        }

    @asynccontextmanager
    async def _opened(
        self, server: Server, call: Message, headers: Mapping[str, str], last: str | None
    ) -> AsyncIterator[tuple[httpx.Response, Any]]:
        life = server.life
        if life is None:
            raise Down
        if last is None:
            sent = {**_ACCEPT, **headers}
            request = self._http.build_request("POST", server.url, json=call, headers=sent)
        else:
            sent = {"accept": "text/event-stream", **headers, "last-event-id": last}
            request = self._http.build_request("GET", server.url, headers=sent)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.ConnectError as error:
            assert life.killed or server.life is not life, f"{server} refused: {error!r}"
            raise Down from error
        except httpx.TransportError as error:
            assert life.killed, f"{server} closed a connection: {error!r}"
            raise Torn from error
        try:
            if response.status_code in (500, 503):
                raise Down
            assert response.status_code == 200, await response.aread()
            yield response, life
        finally:
            await response.aclose()

    async def _answered(self, n: int, question: Message, headers: Mapping[str, str]) -> None:
        answer = {"action": "accept", "content": {"n": n}}
        message = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
        while True:
            response = await self._retried(message, headers)
            if response.status_code == 202:
                return
            assert response.status_code in (500, 503), response.text
            await asyncio.sleep(AGAIN)


_PROGRESS = {"progressToken": "p"}


async def _events(response: httpx.Response) -> AsyncIterator[tuple[str, Message | None]]:
    """Yield the id and the message of each event; a JSON body is one message without an id."""
    if response.headers["content-type"] == "application/json":
        yield "", msgspec.json.decode(await response.aread())
        return
    id = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        if name == "id":
            id = value.strip()
        elif name == "data":
            yield id, msgspec.json.decode(value) if value.strip() else None
        elif not line:
            id = ""


def _has_ended(task: Message) -> bool:
    """Return whether *task* has ended and has a result: the handle of an ended task has none."""
    return task["status"] == "cancelled" or "result" in task or "error" in task


def _passing(refused: Refused) -> bool:
    """Return whether the rejected request may be retried."""
    (answer,) = refused.args
    data = answer.get("error", {}).get("data")
    return isinstance(data, dict) and "retryAfter" in data


def _value(answer: Message) -> Message:
    """Return the result of a tool. Raises if the error may be retried, or reports a lost call.

    Neither of these acknowledges the call.
    """
    error = answer.get("error", {})
    if "retryAfter" in (error.get("data") or {}):
        raise Unacknowledged(answer)
    if "was lost" in error.get("message", ""):
        return {"lost": "call"}
    value: Message = _result(answer)["structuredContent"]
    return value


def random_of(random: Random) -> Random:
    """Return a new source of random numbers, so that calls do not affect each other."""
    return Random(random.random())
