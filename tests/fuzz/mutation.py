"""Values that are almost valid: JSON and bytes with a small random change."""

import json
import re
import string
from collections.abc import Callable
from random import Random
from typing import Any

ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\U0001f9ff" * 3,
    "e\u0301",
    "\u202egnp.exe",
    "\ufeff",
    "\x7f\x80\x9f",
    "__proto__",
    "../../etc/passwd",
    "=?base64?4pi6?=",
    "=?base64?=",
    "tools/call",
    "2026-07-28",
]
SURROGATES = ["\ud800", "\udc00\ud800", "a\udfffb"]
ODD_KEYS = [*ODD_TEXTS, "_meta", "id", "method", "params", "arguments", "name", "uri", "cursor"]

# Texts that json.dumps cannot write, which are inserted unchanged.
_RAW = re.compile(r'"@raw:([^"]*)"')
LITERALS = [
    "-0",
    "-0.0",
    "1E2",
    "-1e-999",
    "9" * 40,
    "0." + "1" * 400,
    "9007199254740993",
    "18446744073709551616",
    *(" {} ", " [ ] ", "{ }"),
    *("NaN", "-Infinity", "01", "1.", "1e999", "9" * 5000, "tru", "'a'"),  # invalid, or too large
    "[" * 900 + "]" * 900,
]


def value(rng: Random, depth: int = 3) -> Any:
    """Return a JSON value of any kind."""
    kind = rng.randrange(12 if depth else 9)
    if kind < 4:
        return [None, True, False, rng.choice([0, 1, -1, 2**31, 2**63, 10**30])][kind]
    if kind == 4:
        return rng.choice([0.5, -1e-9, 1e308, float(rng.randrange(10))])
    if kind == 5:
        return "@raw:" + rng.choice(LITERALS)
    if kind < 9:
        return text(rng)
    if kind == 9:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def text(rng: Random) -> str:
    """Return a text, rarely a very long one."""
    kind = rng.randrange(40)
    if kind == 0:
        return rng.choice("xé\U0001f9ff") * rng.choice([100, 5_000, 70_000])
    if kind == 1:
        return rng.choice(SURROGATES)
    if kind < 16:
        return rng.choice(ODD_KEYS)
    return "".join(rng.choices(string.printable, k=rng.randrange(8)))


def document(rng: Random, found: Any) -> Any:
    """Return *found* with one change at a random place."""
    path = []
    here = found
    while isinstance(here, dict | list) and here and rng.random() < 0.8:
        key = rng.choice([*here]) if isinstance(here, dict) else rng.randrange(len(here))
        path.append(key)
        here = here[key]
    return _changed(rng, found, path)


def _changed(rng: Random, found: Any, path: list[Any]) -> Any:
    if not path:
        return rng.choice(_CHANGES)(rng, found)
    key, *rest = path
    copy = found.copy()
    kind = rng.randrange(8)
    if rest or kind > 3:
        copy[key] = _changed(rng, found[key], rest)
    elif kind == 0 or not isinstance(copy, dict):
        del copy[key]
    elif kind == 1:
        copy[text(rng)] = copy.pop(key)
    elif kind == 2:
        copy[text(rng)] = copy[key]
    else:
        other = rng.choice([*copy])
        copy[key], copy[other] = copy[other], copy[key]
    return copy


def _nested(rng: Random, found: Any) -> Any:
    key = rng.choice([None, "a", "_meta", "arguments"])
    for _ in range(rng.choice([1, 2, 10, 60, 70])):
        found = [found] if key is None else {key: found}
    return found


_CHANGES: list[Callable[[Random, Any], Any]] = [
    lambda rng, found: value(rng),
    lambda rng, found: value(rng),
    lambda rng, found: text(rng),
    lambda rng, found: text(rng),
    lambda rng, found: str(found) if not isinstance(found, str) else len(found),
    lambda rng, found: [found] * rng.randrange(1, 4),
    lambda rng, found: {**found, text(rng): value(rng)} if isinstance(found, dict) else {},
    lambda rng, found: "@raw:" + rng.choice(LITERALS),
    _nested,
]


def written(rng: Random, found: Any) -> bytes:
    """Return *found* as JSON text, with random whitespace and escapes."""
    style = rng.randrange(9)
    whole = json.dumps(found, ensure_ascii=style > 0, separators=(",", ":") if style < 4 else None)
    whole = _RAW.sub(r"\1", whole)
    if style == 4:
        whole = f"\r\n\t {whole} \n"
    if style == 5 and rng.random() < 0.5:  # a duplicate member
        members = rng.choice(
            ['"id":7', '"jsonrpc":"2.0"', '"method":"ping"', '"params":{}', '"":0']
        )
        whole = whole.replace("{", "{" + members + ",", 1)
    return whole.encode("utf-8", rng.choice(["surrogatepass", "replace"]))


_TOKENS = [
    *(bytes([each]) for each in b'{}[]",:\\/0e-\0\n\r'),
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\\u",
    b"\\ud800",
    b"null",
    b'"id":null,',
    b"data: x\n\n",
    b"[" * 100,
    b'{"a":' * 100,
    b"\\" * 99,
    b" " * 1000,
]


def raw(rng: Random, found: bytes) -> bytes:
    """Return *found* with one change of its bytes."""
    at = rng.randrange(len(found) + 1)
    to = min(len(found), at + rng.choice([1, 1, 2, 8, 64]))
    kind = rng.randrange(7)
    if kind == 0:
        return found[:at] + found[to:]
    if kind == 1:
        return found[:at]
    if kind == 2:
        return found[:at] + found[at:to] * 2 + found[to:]
    if kind == 3:
        return found[:at] + rng.randbytes(to - at) + found[to:]
    if kind == 4 and at < len(found):
        return found[:at] + bytes([found[at] ^ (1 << rng.randrange(8))]) + found[at + 1 :]
    return found[:at] + rng.choice(_TOKENS) + found[at if kind == 5 else to :]
