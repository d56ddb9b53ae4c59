"""Every decoder of peer data accepts any bytes, or raises its documented error."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from genmcp.core.seal import Purpose, Seal
from genmcp.errors import ConfigurationError, HeaderMismatch, HttpRejected, McpError, SealError
from genmcp.wire import jsonrpc, param_headers, sse
from genmcp.wire.http import (
    HeaderPolicy,
    Security,
    check_get_headers,
    check_post_headers,
    cors_headers,
    preflight_headers,
)
from genmcp.wire.sse import EventReader, SseEvent
from tests.fuzz import mutation
from tests.fuzz.conftest import Plan

pytestmark = pytest.mark.fuzz

SEAL = Seal("z" * 32, "fuzz", now=lambda: 0.0, nonce=bytes)
SEALED = SEAL.seal(Purpose.SESSION, b"payload", ttl=9)
POLICIES = [
    HeaderPolicy(Security()),
    HeaderPolicy(Security(allowed_origins=["https://a.b"], allowed_hosts=["*.b"])),
]
RULES = [
    param_headers.HeaderRule(b"mcp-param-a", ("a",), "string"),
    param_headers.HeaderRule(b"mcp-param-b", ("b", "c"), "integer"),
]
STREAM = (
    sse.retry(7)
    + sse.prime(b"x/0")
    + sse.event(b'{"a":"\xc3\xa9"}', b"x/1")
    + sse.COMMENT
    + sse.event(b"a\nb\r\nc")
)


def jsonrpc_message(rng: Random) -> None:
    """A decoded message has a response, and two decoders agree on it."""
    message: Any = {"jsonrpc": "2.0", "id": rng.choice([1, "a"]), "method": "m", "params": {"a": 1}}
    if rng.random() < 0.3:
        message = {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x", "data": [1]}}
    if rng.random() < 0.2:
        message = [message, message]
    for _ in range(rng.randrange(3)):
        message = mutation.document(rng, message)
    body = mutation.written(rng, message)
    for _ in range(rng.randrange(3)):
        body = mutation.raw(rng, body)
    try:
        found = jsonrpc.decode(body)
    except McpError as error:
        response = json.loads(jsonrpc.encode_error(jsonrpc.id_of(body), error))
        assert -32700 <= response["error"]["code"] <= -32600
        return
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, jsonrpc.Message):
            assert each.is_response or each.is_request or each.id is msgspec.UNSET
            if each.request_id is not None:
                answer = jsonrpc.encode_response(each.request_id, b"{}")
                assert json.loads(answer)["id"] == each.request_id


def event_stream(rng: Random) -> None:
    """The split into chunks does not matter. Arbitrary bytes are events or ignored."""
    stream = STREAM
    for _ in range(rng.randrange(4)):
        stream = mutation.raw(rng, stream)
    whole, cut = EventReader(500), EventReader(500)
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(20)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    if rng.random() < 0.1:
        pieces = [bytes([each]) for each in stream]
    expected = whole.feed(stream)
    assert expected == [event for piece in pieces for event in cut.feed(piece)]
    assert whole.last_id == cut.last_id


def written_event(rng: Random) -> None:
    """An encoded event is equal after decoding."""
    text = json.dumps(mutation.text(rng).encode("utf-8", "replace").decode())
    (event,) = EventReader().feed(sse.event(text.encode(), b"s/1"))
    assert SseEvent(text.encode(), "message", "s/1") == event


def mirrored_value(rng: Random) -> None:
    """A value is equal after encoding in a header; any header is a value or a mismatch."""
    value = mutation.text(rng).encode("utf-8", "replace").decode()
    encoded = param_headers.encode_value(value).encode()
    assert value == param_headers.decode_value("X", encoded)
    broken = mutation.raw(rng, rng.choice([encoded, b"1e5", b"-0.0", b"true", b"=?base64?YQ==?="]))
    arguments: Any = rng.choice(
        [{"a": value, "b": {"c": rng.choice([1, -0.0, 10**30, True])}}, [], None]
    )
    for check in (
        lambda: param_headers.decode_value("X", broken),
        lambda: param_headers.check_params({b"mcp-param-b": broken}, RULES, arguments),
        lambda: param_headers.check_params({b"mcp-param-a": broken}, RULES, {"a": value}),
        lambda: param_headers.check_method({b"mcp-method": broken}, value),
    ):
        try:
            check()
        except HeaderMismatch as error:
            json.dumps(error.message).encode()


def sealed_value(rng: Random) -> None:
    """Only sealed values can be opened."""
    text = mutation.raw(rng, SEALED.encode()).decode("utf-8", "replace")
    if text == SEALED:
        return
    with pytest.raises(SealError):
        SEAL.open(Purpose.SESSION, text)


HEADERS = [
    (b"host", b"localhost:80"),
    (b"origin", b"https://a.b"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"accept", b"application/json;q=0.5, text/event-stream, */*;q=0"),
    (b"access-control-request-headers", b"mcp-param-a, x"),
]


def http_head(rng: Random) -> None:
    """A head is accepted, or rejected with a status. A text for a page is a valid header value."""
    pairs = [(n, mutation.raw(rng, v) if rng.random() < 0.4 else v) for n, v in HEADERS]
    if rng.random() < 0.2:
        pairs.append(rng.choice(pairs))
    try:
        peer = rng.choice(
            [None, "127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "x%y", "[::1"]
        )
        table = rng.choice(POLICIES).check(pairs, peer)
    except HttpRejected as error:
        assert error.status in (400, 403, 421, 431)
        return
    try:
        check_post_headers(table.get(b"content-type", b""), table.get(b"accept", b"*/*"))
    except HttpRejected as error:
        assert error.status in (406, 415, 431)
    try:
        check_get_headers(table)
    except HttpRejected as error:
        assert error.status == 406
    origin = table[b"origin"]
    assert all(
        name.islower() for name, _ in [*cors_headers(origin), *preflight_headers(table, origin)]
    )


def allowed_names(rng: Random) -> None:
    """An allow list is accepted, or rejected by the constructor."""
    text = mutation.raw(rng, rng.choice([b"https://a.b:1", b"*.a.b", b"[::1]:80", b"*"]))
    name = text.decode("utf-8", "replace")
    try:
        policy = HeaderPolicy(Security(allowed_origins=[name], allowed_hosts=[name]))
    except ConfigurationError:
        return
    try:
        policy.check([(b"host", b"a.b"), (b"origin", b"https://a.b:1")], None)
    except HttpRejected as error:
        assert error.status in (403, 421)


TARGETS: list[tuple[Callable[[Random], None], int]] = [
    (jsonrpc_message, 8),
    (event_stream, 4),
    (written_event, 2),
    (mirrored_value, 2),
    (sealed_value, 2),
    (http_head, 4),
    (allowed_names, 1),
]


@pytest.mark.parametrize(
    ("target", "share"), TARGETS, ids=lambda each: getattr(each, "__name__", "")
)
def test_codec_survives(target: Callable[[Random], None], share: int, plan: Plan) -> None:
    """For any input, the docstring of the target holds, and no other error is raised."""
    total = sum(shares for _, shares in TARGETS)
    for number in range(plan.first, plan.first + max(1, plan.cases * share // total)):
        try:
            target(Random(f"{plan.seed}/{number}"))
        except Exception as error:
            pytest.fail(
                f"{type(error).__name__}: {error}\n  pytest tests/fuzz -k {target.__name__} "
                f"--fuzz-seed {plan.seed} --fuzz-first {number} --fuzz-cases 1"
            )
