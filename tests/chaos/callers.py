"""Clients that call the tool in each way the protocol offers, over raw HTTP.

A connection may only break if its process was killed. Idempotent requests are then sent to another
process; a call on that connection is lost (`Torn`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import groupby
from random import Random
from typing import Any, TypeAlias

import httpx
import msgspec

from tests.chaos.processes import PAUSE, Fleet, Life, Server, until

Message: TypeAlias = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
TASKS: Message = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
BOUND = 20.0  # seconds for a step of a task
ENDS = ("completed", "failed", "cancelled")
_ACCEPT = {"accept": "application/json, text/event-stream"}
_CLIENT = {"name": "chaos", "version": "1"}


class Torn(Exception):
    """The connection was lost: the server process was killed."""


class Down(Exception):
    """The connection was refused: the server process had been killed before."""


class Refused(Exception):
    """The response was an error."""


class Ended(msgspec.Struct):
    """A completed call: its result, and the id of its task if the client has one."""

    n: int
    tool: str
    value: Message | None = None
    task: str | None = None
    last: Message | None = None


class Caller:
    """Calls the servers of *fleet*. *random* chooses the server and the pauses."""

    def __init__(self, http: httpx.AsyncClient, fleet: Fleet, random: Random) -> None:
        self._http = http
        self._fleet = fleet
        self._random = random

    async def as_task(self, n: int, tool: str) -> Ended:
        """Call with the tasks extension: poll the task, and answer its question."""
        handle = await self.begin(n, tool, self._seconds())
        seen = [handle]
        asked = False
        while (last := seen[-1])["status"] not in ENDS:
            if last["status"] == "input_required":
                assert not asked, f"call {n} is asked again: {seen}"
                await self.answer(n, last)
                asked = True
            await self._think()
            seen.append(await self.task(handle["taskId"]))
        check_order(seen)
        return Ended(n, tool, last.get("result", {}).get("structuredContent"), last["taskId"], last)

    async def begin(self, n: int, tool: str, seconds: float = 0) -> Message:
        """Call with the tasks extension, and return the task handle."""
        return await self._once(_called(n, tool, seconds, {"elicitation": {}, **TASKS}))

    async def answer(self, n: int, task: Message) -> None:
        """Answer the question of the task of call *n*."""
        update = {"taskId": task["taskId"], "inputResponses": _answers(n, task)}
        await self.anywhere(_modern("tasks/update", update, TASKS))

    async def finish(self, n: int, task: Message) -> Message:
        """Answer the question of a task, if it has one; return the final task."""
        task = await self.until(task["taskId"], "input_required", *ENDS)
        if task["status"] not in ENDS:
            await self.answer(n, task)
            task = await self.until(task["taskId"], *ENDS)
        return task

    async def until(self, id: str, *statuses: str) -> Message:
        """Poll a task until it has one of *statuses*; return it."""
        async with asyncio.timeout(BOUND):
            while True:
                if (task := await self.task(id))["status"] in statuses:
                    return task
                await asyncio.sleep(PAUSE)

    async def by_state(self, n: int, tool: str) -> Ended:
        """Call without the tasks extension: the question is a result, and the answer a retry."""
        call = _called(n, tool, self._seconds(), {"elicitation": {}})
        asking = await self._once(call)
        if asking["resultType"] == "complete":
            return Ended(n, tool, asking["structuredContent"])
        await self._think()
        again = {**call, "params": {**call["params"], "requestState": asking["requestState"]}}
        again["params"]["inputResponses"] = _answers(n, asking)
        result = await self.anywhere(again)
        assert result == await self.anywhere(again), "the same answer has two outcomes"
        return Ended(n, tool, result["structuredContent"])

    async def in_session(self, n: int, tool: str) -> Ended:
        """Call as in 2025: the question is sent on the stream; another process gets the answer."""
        params = {
            "protocolVersion": LEGACY,
            "capabilities": {"elicitation": {}},
            "clientInfo": _CLIENT,
        }
        opened = await self._retried(_message("initialize", params, 0), {})
        headers = {
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": LEGACY,
        }
        call = _message("tools/call", _tool(n, tool, self._seconds()), n)
        while True:
            server = await self._server()
            try:
                async with self._stream(server, call, headers) as messages:
                    async for message in messages:
                        if message.get("method") == "elicitation/create":
                            await self._answer(n, server, message, headers)
                        elif message.get("id") == n:
                            return Ended(n, tool, _result(message)["structuredContent"])
            except Down:
                continue
            raise AssertionError(f"the stream of call {n} has ended without an answer")

    async def task(self, id: str) -> Message:
        """Return a task."""
        return await self.anywhere(_modern("tasks/get", {"taskId": id}, TASKS))

    async def anywhere(self, message: Message) -> Message:
        """Return the result of an idempotent request."""
        return _result(_last(await self._retried(message, _headers(message))))

    async def at(self, server: Server, id: str) -> Message:
        """Return a task from one server."""
        message = _modern("tasks/get", {"taskId": id}, TASKS)
        return _result(_last(await self._post(server, message, _headers(message))))

    async def _once(self, message: Message) -> Message:
        """Return the result of a request that must not be retried.

        Raises:
            Torn: the connection was lost.
        """
        while True:
            try:
                response = await self._post(await self._server(), message, _headers(message))
            except Down:
                continue
            return _result(_last(response))

    async def _retried(
        self, message: Message, headers: Mapping[str, str], but: Server | None = None
    ) -> httpx.Response:
        while True:
            try:
                return await self._post(await self._server(but), message, headers)
            except (Down, Torn):
                await asyncio.sleep(PAUSE)

    async def _answer(
        self, n: int, asker: Server, question: Message, headers: Mapping[str, str]
    ) -> None:
        assert question["params"]["message"] == f"Go on with {n}?"
        await self._think()
        answer = {"action": "accept", "content": {"n": n}}
        message = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
        response = await self._retried(message, headers, but=asker)
        assert response.status_code == 202, response.text

    async def _post(
        self, server: Server, message: Message, headers: Mapping[str, str]
    ) -> httpx.Response:
        return await _response_of(
            server,
            lambda: self._http.post(server.url, json=message, headers={**_ACCEPT, **headers}),
        )

    @asynccontextmanager
    async def _stream(
        self, server: Server, message: Message, headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Message]]:
        request = self._http.build_request(
            "POST", server.url, json=message, headers={**_ACCEPT, **headers}
        )
        life = server.life
        response = await _response_of(server, lambda: self._http.send(request, stream=True))
        try:
            yield _messages(response, life)
        finally:
            await response.aclose()

    async def _server(self, but: Server | None = None) -> Server:
        """Return a server that is up and not *but*."""
        up = await until(lambda: [each for each in self._fleet.up if each is not but])
        return self._random.choice(up)

    async def _think(self) -> None:
        await asyncio.sleep(self._random.uniform(0.02, 0.3))

    def _seconds(self) -> float:
        return self._random.uniform(0.05, 1.0)


async def _response_of(
    server: Server, exchange: Callable[[], Awaitable[httpx.Response]]
) -> httpx.Response:
    """Return the response of *exchange*.

    Raises:
        Down, Torn: the process was killed before or during the request.
    """
    life = server.life
    if life is None:
        raise Down
    try:
        return await exchange()
    except httpx.TransportError as error:
        assert life.killed, f"{server} closed a connection: {error!r}"
        raise (Down if isinstance(error, httpx.ConnectError) else Torn) from error


async def _messages(response: httpx.Response, life: Life | None) -> AsyncIterator[Message]:
    """Yield the JSON-RPC messages of a response, from an event stream or a JSON body."""
    assert response.status_code == 200, await response.aread()
    try:
        if response.headers["content-type"] == "application/json":
            yield msgspec.json.decode(await response.aread())
            return
        async for line in response.aiter_lines():
            if line.startswith("data:") and line[5:].strip():
                yield msgspec.json.decode(line[5:])
    except httpx.TransportError as error:
        assert life is not None and life.killed, f"a stream was torn: {error!r}"
        raise Torn from error


def _last(response: httpx.Response) -> Message:
    """Return the last message of a response."""
    assert "content-type" in response.headers, f"{response!r} {response.headers} {response.text}"
    if response.headers["content-type"] == "application/json":
        found: Message = response.json()
        return found
    lines = [line[5:] for line in response.text.splitlines() if line.startswith("data:")]
    last: Message = msgspec.json.decode(lines[-1])
    return last


def _result(answer: Message) -> Message:
    if "error" in answer or answer["result"].get("isError"):
        raise Refused(answer)
    result: Message = answer["result"]
    return result


def _message(method: str, params: Message, id: int) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def _tool(n: int, tool: str, seconds: float) -> Message:
    return {"name": tool, "arguments": {"n": n, "seconds": seconds}}


def _called(n: int, tool: str, seconds: float, capabilities: Message) -> Message:
    return _modern("tools/call", _tool(n, tool, seconds), capabilities)


def _modern(method: str, params: Message, capabilities: Message) -> Message:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": _CLIENT,
    }
    return _message(method, {**params, "_meta": meta}, 1)


def _headers(message: Message) -> dict[str, str]:
    params = message["params"]
    return {
        "mcp-protocol-version": MODERN,
        "mcp-method": message["method"],
        "mcp-name": params.get("name") or params.get("taskId"),
    }


def _answers(n: int, asking: Message) -> Message:
    ((name, question),) = asking["inputRequests"].items()
    assert question["params"]["message"] == f"Go on with {n}?"
    return {name: {"action": "accept", "content": {"n": n}}}


def check_order(seen: list[Message]) -> None:
    """Check that a task never returned to an earlier status."""
    changes = [status for status, _ in groupby(each["status"] for each in seen)]
    whole = ["working", "input_required", "working", changes[-1]]
    assert changes in (whole, whole[:2] + whole[3:], whole[:1] + whole[3:]), changes
    updates = [each["lastUpdatedAt"] for each in seen]
    assert updates == sorted(updates), f"an older state was told after a newer one: {updates}"


def is_end(n: int, tool: str, value: dict[str, Any]) -> bool:
    """Return whether *value* can be the result of call *n* and of no other."""
    if "lost" in value:
        return tool == "fail" and value == {"lost": value["lost"], "argument": n}
    first, second = {"n": n, "step": "first"}, {"n": n, "step": "second"}
    rest = {"assigned": n, "answered": n, "argument": n}
    return value == {**rest, "first": first, "second": second}
