"""A server that responds to each call with the requested fault; over stdio if run.

    python fuzzed_peer.py SEED [OPENING]

OPENING: the fault in its response to the first request. Needs nothing but Python, so
that it starts at once.
"""

import json
import os
import random
import signal
import sys
from typing import Any

MODERN = "2026-07-28"
MAX_MESSAGE = 65_536
MARK = "\u00fc\u20ac\U0001d11e"  # two, three and four bytes, for a cut in their middle
NO_IDS: list[Any] = [None, True, False, 1.5, "", "x", -1, 0, 10**6, 2**70, [1], {"id": 1}]
RESULTS: list[Any] = [
    None, True, 5, "", [], {}, {"content": 5}, {"content": [{"type": "text"}]}, {"content": [None]},
    {"content": [5], "resultType": "nothing"}, {"content": {}, "resultType": 5},
    {"resultType": "input_required"}, {"resultType": "input_required", "inputRequests": [1]},
    {"resultType": "task"}, {"resultType": "task", "taskId": 5},
    {"content": [{"type": "text", "text": 5}]}, {"content": [{"type": "image", "data": "?"}]},
]  # fmt: skip
#: Not JSON, or invalid at that place in JSON-RPC.
LINES = [
    b"", b"\r", b" ", b"null", b"5", b'"a"', b"[]", b"[[]]", b"[1,null]", b"{}", b"\x00",
    b"\xff\xfe", b"\xef\xbb\xbf{}", b"{" * 5_000, b"[" * 100_000, b'{"jsonrpc":"2.0"}', b"nan",
    b"1e999", b"Content-Length: 5",
    b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"1.0","id":1,"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}', b'{"jsonrpc":"2.0","method":5}',
    b'{"jsonrpc":"2.0","method":"\\ud800"}', b'{"jsonrpc":"2.0","id":99,"result":{},"error":{}}',
    b'{"jsonrpc":"2.0","id":99,"error":5}', b'{"jsonrpc":"2.0","id":99,"error":{"code":"x"}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
]  # fmt: skip
NOTIFICATIONS: list[tuple[str, Any]] = [
    ("notifications/message", {"level": "info", "data": "x" * 100}),
    ("notifications/message", {"level": "loud"}),
    ("notifications/progress", {"progressToken": 99, "progress": 1}),
    ("notifications/progress", {"progressToken": 1, "progress": "far"}),
    ("notifications/progress", None),
    ("notifications/cancelled", {"requestId": 1}),
    ("notifications/cancelled", {}),
    ("notifications/tools/list_changed", {}),
    ("notifications/tools/list_changed", [1]),
    ("notifications/resources/updated", {"uri": 5}),
    ("notifications/subscriptions/acknowledged", {}),
    ("notifications/tasks", {"taskId": "t", "status": "done"}),
    ("nobody/knows", {"a": [1, {"b": None}]}),
]
#: Faults after which the call has its answer all the same.
HARMLESS = ["none", "split", "doubled", "refused_too", "flood", "garbage", "asks", "batch"]
#: Faults after which it has none: an error, or nothing until the time is over.
FATAL = ["truncated", "wrong_id", "long", "utf8", "silent", "late", "shape"]
#: Faults whose effect depends on the following message.
OTHER = ["unended"]
ENDING = ["exit"]


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode()


def answer(id: Any, text: str) -> bytes:
    """The right answer to a call, or one that would be right for another."""
    content = [{"type": "text", "text": text}]
    return encoded({"id": id, "result": {"content": content, "resultType": "complete"}})


def opening(message: dict[str, Any]) -> bytes:
    """The correct response to a request other than a call."""
    id, result = message["id"], {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    match message["method"]:
        case "server/discover":
            versions = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            return encoded({"id": id, "result": {**result, **versions}})
        case "initialize":
            info = {"name": "peer", "version": "1"}
            welcome = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
            return encoded({"id": id, "result": welcome})
        case "tools/list":
            tools = [{"name": "t", "inputSchema": {"type": "object"}}]
            return encoded({"id": id, "result": {**result, "tools": tools}})
    return encoded({"id": id, "error": {"code": -32601, "message": "no"}})


def faulty(rng: random.Random, fault: str, id: int, good: bytes) -> list[bytes]:
    """Return the messages that a peer with *fault* sends in place of *good*, its answer to *id*."""
    match fault:
        case "doubled":
            # The first line ends one that is unended, or the wrong answer were the first.
            return [b"", good, answer(id, "wrong"), good]
        case "refused_too":
            return [good, encoded({"id": id, "error": {"code": -32603, "message": "wrong"}})]
        case "flood":
            return [*(notification(rng) for _ in range(rng.randrange(300))), good]
        case "garbage":
            return [*rng.choices(LINES, k=8), good]
        case "asks":
            return [*(question(rng) for _ in range(rng.randrange(100))), good]
        case "batch":
            wrong = answer(10**6, "wrong")
            return [b"[" + b",".join([notification(rng), good, wrong]) + b"]"]
        case "truncated":
            return [good[: rng.randrange(len(good))]]
        case "wrong_id":
            return [answer(rng.choice([*NO_IDS, str(id), float(id) + 0.5, [id]]), "wrong")]
        case "long":
            return [answer(id, "wrong" * rng.randrange(MAX_MESSAGE // 5, MAX_MESSAGE))]
        case "utf8":
            at = good.index(MARK.encode()) + rng.randrange(1, 9)
            return [
                good[:at] + rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x80"]) + good[at:]
            ]
        case "shape":
            return [encoded({"id": id, "result": rng.choice(RESULTS)})]
        case "silent" | "late":
            return []
    return [good]


def notification(rng: random.Random) -> bytes:
    method, params = rng.choice(NOTIFICATIONS)
    return encoded({"method": method, "params": params})


def question(rng: random.Random) -> bytes:
    methods = ["ping", "sampling/createMessage", "roots/list", "elicitation/create", "what/ever"]
    return encoded({"id": rng.choice([1, "a", 2**60, -5]), "method": rng.choice(methods)})


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut *data* anywhere, into ten pieces at most."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(9))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


class Peer:
    """The server over stdio. *fault*: that of its first answer."""

    def __init__(self, seed: str, fault: str = "none") -> None:
        self.rng = random.Random(seed)
        self.fault = fault
        self.late: list[bytes] = []

    def take(self, message: dict[str, Any]) -> None:
        if "id" not in message or "method" not in message:
            return
        id, fault = message["id"], self.fault
        if message["method"] == "tools/call":
            arguments = message["params"]["arguments"]
            fault, good = arguments["fault"], answer(id, f"{arguments['n']}{MARK}")
        else:
            good = opening(message)
            if fault == "utf8":
                good = good.replace(b"result", b"result" + MARK.encode())
        if fault == "deaf":
            signal.pause()
        if fault == "none":
            # Open lines end, and late messages are sent, before the next correct response.
            self.write(b"\n" + b"".join(each + b"\n" for each in self.late))
            self.late.clear()
        if fault == "late":
            self.late.append(good)
        if fault in ("unended", "exit"):
            self.write(good[: self.rng.randrange(len(good))])
            if fault == "exit":
                sys.stderr.write("\x00\xff oh no\n")
                sys.stderr.flush()
                os._exit(self.rng.randrange(4))
            return
        data = b"".join(each + b"\n" for each in faulty(self.rng, fault, id, good))
        for piece in cut(self.rng, data) if fault == "split" else [data]:
            self.write(piece)

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    peer = Peer(*sys.argv[1:])
    for line in sys.stdin.buffer:
        peer.take(json.loads(line))
