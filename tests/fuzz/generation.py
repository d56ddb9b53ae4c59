"""The cases of the endpoint fuzzer, each generated from a seed and its number."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.fuzz import hostile, mutation
from tests.fuzz.case import Case, Ending
from tests.support.asgi import ALL, LEGACIES, MODERN, Client

Table = dict[bytes, list[bytes]]

BODY_LIMIT = 64 * 1024


@dataclass
class Known:
    """The ids that a client can know: sessions and events by revision, and invalid ones."""

    sessions: Mapping[str, str]
    worthless: Mapping[str, str]
    events: dict[str, list[str]] = field(default_factory=dict)


def hostile_case(seed: int, number: int, known: Known) -> Case:
    """Return case *number* of *seed*: a valid request, except that it exceeds a bound."""
    rng = Random(f"hostile/{seed}/{number}")
    version = rng.choice([MODERN, "2025-03-26", "2025-03-26", *LEGACIES])
    message = hostile.message(rng, version)
    body = mutation.written(rng, message)
    made = Case("POST", parts=(body,))
    table = _table(known, version, message if body.isascii() else None)
    headers = tuple((name, value) for name, values in table.items() for value in values)
    return _behaviour(rng, replace(made, headers=headers, peer="192.0.2.1"))


def case(seed: int, number: int, known: Known) -> Case:
    """Return case *number* of *seed*."""
    rng = Random(f"{seed}/{number}")
    version = rng.choice([MODERN, MODERN, *LEGACIES])
    make = _stream if rng.random() < 0.12 else _post
    return _behaviour(rng, make(rng, known, version))


def _post(rng: Random, known: Known, version: str) -> Case:
    kind = rng.random()
    message = _message(rng, version, known)
    table = _table(known, version, message)
    if kind < 0.05:
        body = rng.randbytes(rng.choice([0, 1, 2, 10, 100, 1000]))
    elif kind < 0.12:
        body = mutation.written(rng, mutation.value(rng, depth=6))
    else:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            message = _mutated(rng, message)
        if rng.random() < 0.5:  # a valid request
            table = _table(known, version, message)
        body = mutation.written(rng, message)
        for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 2])):
            body = mutation.raw(rng, body)
        if rng.random() < 0.004:
            body += b" " * rng.choice([BODY_LIMIT - 1000, 2 * BODY_LIMIT])
    method = "POST" if rng.random() < 0.98 else _method(rng)
    return _dressed(rng, Case(method, parts=(body,)), table, known)


def _stream(rng: Random, known: Known, version: str) -> Case:
    """Return a request without a message: a GET, a DELETE, or another method."""
    table = _table(known, version, None)
    if rng.random() < 0.6:
        ids = [*known.events.get(version, []), "listener/", "listener/1", "x/0", "/", ""]
        last = rng.choice(ids)
        if rng.random() < 0.3:
            last = mutation.raw(rng, last.encode()).decode("latin-1").replace("\n", "")
        table[b"last-event-id"] = [last.encode("latin-1")]
    method = rng.choice(["GET", "GET", "GET", "DELETE", "OPTIONS", _method(rng)])
    if method == "OPTIONS":
        table[b"origin"] = [rng.choice(ORIGINS)]
        table[b"access-control-request-headers"] = [
            b"mcp-param-a, x, mcp-param-\xff,, content-type"
        ]
    return _dressed(rng, Case(method), table, known)


def _mutated(rng: Random, message: Any) -> Any:
    """Return *message* with one change, usually so deep that it is decoded to the end."""
    within = rng.choice([(), ("params",), ("params", "arguments"), ("params", "_meta")])
    copy = here = message
    if isinstance(message, dict):
        copy = here = dict(message)
        for key in within[:-1]:
            if isinstance(here.get(key), dict):
                here[key] = here = dict(here[key])
        if within and within[-1] in here:
            here[within[-1]] = mutation.document(rng, here[within[-1]])
            return copy
    return mutation.document(rng, message)


def _method(rng: Random) -> str:
    return rng.choice(["GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "get", "", "X" * 999, "Ø"])


# Messages.

_CALLS: list[tuple[str, Any]] = [
    (
        "typed",
        {"items": [{"name": "a", "size": 1}, {"name": "b"}], "kind": "b", "notes": {"a": "b"}},
    ),
    ("typed", {"items": "none", "weight": "1"}),
    ("mirrored", {"region": "eu", "count": 7, "deep": {"dry": True}}),
    ("mirrored", {"region": "é ", "count": None, "deep": {}}),
    ("strict", {"code": "abc1", "tags": ["a", "b"], "step": 0.3, "tree": {"a": {"b": {}}}}),
    ("strict", {"code": "!", "email": "x", "tags": ["a", "a"], "step": -1, "more": 1}),
    ("anything", {"a": [1, 2.5, None, {"b": "é"}]}),
    ("anything", {}),
    ("leaving", {}),
    ("crash", {}),
    ("crash", {"how": "contract"}),
    ("crash", {"how": "said"}),
    ("crash", {"how": "error"}),
    ("speaks", {"times": 3}),
    ("speaks", {}),
    ("threaded", {"text": "x"}),
    ("unknown", {}),
]
_OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/list", {"cursor": "x"}),
    ("ping", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("server/discover", {}),
    ("resources/read", {"uri": "file:///x"}),
    ("prompts/get", {"name": "x", "arguments": {"a": "b"}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {}}),
    ("subscriptions/listen", {"notifications": {}}),
    ("no/such/method", {}),
]
_NOTIFICATIONS: list[tuple[str, dict[str, Any]]] = [
    ("notifications/initialized", {}),
    ("notifications/cancelled", {"requestId": 1, "reason": "no"}),
    ("notifications/cancelled", {"requestId": [1]}),
    ("notifications/progress", {"progressToken": 1, "progress": 0.5}),
    ("notifications/roots/list_changed", {}),
]
_IDS = [0, *[1] * 12, *["a"] * 4, "", "é\u2028", -5, 10**20, 1.0, 1.5]


def _message(rng: Random, version: str, known: Known) -> Any:
    if version == "2025-03-26" and rng.random() < 0.3:
        return [_single(rng, version) for _ in range(rng.choice([0, 1, 2, 3, 8]))]
    return _single(rng, version)


def _single(rng: Random, version: str) -> dict[str, Any]:
    client = Client(None, version)
    kind = rng.random()
    id = rng.choice(_IDS)
    if kind < 0.08:
        return client.initialize(protocolVersion=rng.choice([version, *ALL, "x"])) | {"id": id}
    if kind < 0.16:
        name, params = rng.choice(_NOTIFICATIONS)
        return client.notification(name, **params)
    if kind < 0.2:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        return answer | rng.choice([{"result": {}}, {"error": {"code": 1, "message": "x"}}])
    meta: dict[str, Any] = {}
    if rng.random() < 0.4:
        meta = {"progressToken": id, "io.modelcontextprotocol/logLevel": "debug"}
    if kind < 0.5:
        name, params = rng.choice(_OTHERS)
        return client.request(name, params, id=id, **meta)
    if rng.random() < 0.005:  # the tool takes milliseconds
        name, params = "slow", {"polls": rng.random() < 0.5}
    else:
        name, params = rng.choice(_CALLS)
    return client.call(name, params, id=id, **meta)


# Headers.

ORIGINS = [b"https://app.example.com", b"https://evil.example", b"null", b"", b"http://localhost:1"]
_VALUES: dict[bytes, list[bytes]] = {
    b"accept": [b"application/json", b"text/event-stream", b"*/*;q=0", b"text/html", b",;=,", b""],
    b"content-type": [b"application/json; charset=utf-8", b"text/plain", b"", b";", b"\xff/\xff"],
    b"content-length": [b"0", b"1", b"-1", b"9" * 30, b"9" * 5000, b"x", b"\xb2", b"65537"],
    b"host": [b"localhost:8000", b"evil.example", b"", b"[::1]:99", b"a@b", b"test:"],
    b"origin": ORIGINS,
    b"mcp-protocol-version": [*(each.encode() for each in ALL), b"", b"x", b"2026-07-29", b"\xff"],
    b"mcp-method": [b"tools/call", b"TOOLS/CALL", b"", b"=?base64?dG9vbHMvY2FsbA==?=", b"\xe9"],
    b"mcp-name": [b"typed", b"", b"=?base64?dHlwZWQ=?=", b"=?base64?%%%?=", b"=?base64?/w==?="],
    b"mcp-session-id": [b"", b"x", b"1" * 9000, b"\xff\xfe", b"a b"],
    b"mcp-param-region": [b"eu", b"=?base64?w6kg?=", b"", b"\xc3\xa9"],
    b"mcp-param-count": [b"7", b"7.0", b"7e0", b"07", b"1e999", b"9" * 5000, b"0x7", b"NaN"],
    b"mcp-param-dry": [b"true", b"True", b"1"],
    b"mcp-param-": [b""],
    b"last-event-id": [b"x/1", b"listener/1", b"/" * 99],
    b"x-other": [b"1", b"\xff" * 99],
    b"transfer-encoding": [b"chunked"],
}


def _table(known: Known, version: str, message: Any) -> Table:
    """Return the headers that *version* requires for *message*."""
    table: Table = {
        b"host": [b"test"],
        b"content-type": [b"application/json"],
        b"accept": [b"application/json, text/event-stream"],
        b"mcp-protocol-version": [version.encode()],
    }
    method = message.get("method") if isinstance(message, dict) else None
    if version != MODERN:
        if method != "initialize":
            table[b"mcp-session-id"] = [known.sessions[version].encode()]
    elif isinstance(method, str):
        table[b"mcp-method"] = [_plain(method)]
        params = message.get("params")
        if isinstance(params, dict):
            name = params.get("uri" if method == "resources/read" else "name")
            if isinstance(name, str):
                table[b"mcp-name"] = [_plain(name)]
            _mirror(table, params.get("arguments"))
    return table


def _mirror(table: Table, arguments: Any) -> None:
    if not isinstance(arguments, dict):
        return
    deep = arguments.get("deep")
    dry = deep.get("dry") if isinstance(deep, dict) else None
    for name, value in (("region", arguments.get("region")), ("dry", dry)):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            table[f"mcp-param-{name}".encode()] = [_plain(text)]
    if arguments.get("count") is not None:
        table[b"mcp-param-count"] = [_plain(str(arguments["count"]))]


def _plain(text: str) -> bytes:
    """Return *text* encoded for a mirroring header (2026-07-28, "Value Encoding")."""
    raw = text.encode("utf-8", "surrogatepass")
    if raw.isascii() and text.isprintable() and text == text.strip():
        return raw
    return b"=?base64?" + base64.b64encode(raw) + b"?="


def _dressed(rng: Random, made: Case, table: Table, known: Known) -> Case:
    """Return *made* with the headers of *table*, some of them possibly wrong."""
    for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
        name = rng.choice([*table, *_VALUES])
        kind = rng.randrange(8)
        if kind == 0:
            table.pop(name, None)
        elif kind == 1:
            table.setdefault(name, []).append(rng.choice(_VALUES.get(name, [b"x"])))
        elif kind == 2 and name in table:
            table[name] = [*table[name], table[name][0]] if table[name] else []
        elif kind == 3:
            table[name] = [rng.choice([b"x", b"\xff", b"1,"]) * rng.choice([100, 70_000])]
        elif kind == 4 and name in table:
            table[name] = [_without_line_ends(mutation.raw(rng, each)) for each in table[name]]
        elif kind == 5:
            ids = [*known.sessions.values(), *known.worthless.values()]
            table[b"mcp-session-id"] = [rng.choice(ids).encode()]
        else:
            table[name] = [rng.choice(_VALUES.get(name, [b"x"]))]
    headers = tuple((name, value) for name, values in table.items() for value in values)
    peer = rng.choice(["192.0.2.1"] * 40 + ["127.0.0.1", "::1", None, "nowhere"])
    path = rng.choice(["/mcp"] * 12 + ["/", "", "/mcp/", "//..%00/\ud800"])
    return replace(made, headers=headers, peer=peer, path=path)


def _without_line_ends(value: bytes) -> bytes:
    """Remove line ends from headers, which no HTTP server would pass on."""
    return value.translate(None, b"\r\n\0")


# The behaviour of the client.


def _behaviour(rng: Random, made: Case) -> Case:
    parts: tuple[bytes, ...] = tuple(made.parts)
    body = made.body
    kind = rng.random()
    if kind < 0.03 and len(body) < 3000:
        parts = tuple(bytes([each]) for each in body) or (b"",)
    elif kind < 0.2:
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(1, 6)))
        parts = tuple(body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True))
    ending: Ending = "whole"
    if rng.random() < 0.05:
        ending = "cut" if rng.random() < 0.98 else "hangs"
        parts = parts[: rng.randrange(len(parts) + 1)]
    leaves = rng.randrange(30) if rng.random() < 0.1 else None
    if made.method == "GET":
        leaves = rng.choice([0, 1, 5, 12])
    fails = rng.randrange(4) if rng.random() < 0.04 else None
    return replace(made, parts=parts, ending=ending, leaves=leaves, fails=fails)
