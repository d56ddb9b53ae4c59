"""JSON-RPC messages: valid and invalid ones, and the encoding of ours."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.errors import (
    InvalidParams,
    InvalidRequest,
    McpError,
    ParseError,
    ResourceNotFound,
    TooLarge,
)
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import ErrorBody, Message

ids = st.integers(-(2**53), 2**53) | st.text()
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
values = st.recursive(
    scalars, lambda held: st.lists(held, max_size=3) | st.dictionaries(st.text(), held, max_size=3)
)
objects = st.dictionaries(st.text(), values, max_size=3)


def one(body: bytes, **options: Any) -> Message:
    message = jsonrpc.decode(body, **options)
    assert isinstance(message, Message)
    return message


def nested(depth: int, inside: bytes = b"1") -> bytes:
    """Return a request of exactly *depth* levels."""
    arrays = b"[" * (depth - 2) + inside + b"]" * (depth - 2)
    return b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + arrays + b"}}"


@given(ids, st.text(), objects)
def test_jsonrpc_request_is_read_as_it_was_written(
    id: int | str, method: str, params: dict[str, Any]
) -> None:
    """A request has its method, its id, and its params as they came."""
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}

    message = one(msgspec.json.encode(body))

    assert message.is_request
    assert not message.is_response
    assert (message.method, message.request_id) == (method, id)
    assert params == msgspec.json.decode(message.params)


@given(st.text(), st.none() | objects)
def test_jsonrpc_notification_reads_back(method: str, params: dict[str, Any] | None) -> None:
    """The output of `encode_notification` has a method, the params, and no id."""
    message = one(jsonrpc.encode_notification(method, params))

    assert not message.is_request
    assert not message.is_response
    assert (message.method, message.request_id) == (method, None)
    assert params == (msgspec.json.decode(message.params) if message.params else None)


@given(ids, values)
def test_jsonrpc_response_reads_back(id: int | str, result: Any) -> None:
    """The output of `encode_response` is the result of that request."""
    message = one(jsonrpc.encode_response(id, msgspec.json.encode(result)))

    assert message.is_response
    assert not message.is_request
    assert id == message.request_id
    assert result == msgspec.json.decode(message.result)


@given(st.none() | ids, st.text(), values)
def test_jsonrpc_error_reads_back(id: int | str | None, text: str, data: Any) -> None:
    """The output of `encode_error` is the error of that request, or has no id."""
    message = one(jsonrpc.encode_error(id, McpError(text, data, code=-32603)))

    assert message.is_response
    assert (message.request_id, message.error) == (id, ErrorBody(-32603, text, data))


def test_jsonrpc_error_without_an_id_has_no_such_member() -> None:
    """The id of an error may be missing but not null (2026-07-28, JSONRPCErrorResponse)."""
    body = jsonrpc.encode_error(None, ParseError("cut"))

    assert (msgspec.json.decode(body)) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "cut"},
    }


def test_jsonrpc_error_may_be_written_with_another_code() -> None:
    """An error has another code in another revision."""
    body = jsonrpc.encode_error("a", ResourceNotFound("file:///a"), -32002)

    error = one(body).error

    assert error is not None
    assert (error.code, error.data) == (-32002, {"uri": "file:///a"})


@given(st.lists(ids, min_size=1, max_size=5))
def test_jsonrpc_batch_reads_back_in_order(many: list[int | str]) -> None:
    """A batch is an array of its messages (2025-03-26, basic, "Batching")."""
    body = jsonrpc.encode_batch([jsonrpc.encode_response(id, b"{}") for id in many])

    batch = jsonrpc.decode(b" \r\n\t" + body)

    assert isinstance(batch, list)
    assert many == [member.request_id for member in batch if isinstance(member, Message)]


@given(ids)
def test_jsonrpc_id_is_written_as_msgspec_reads_it(id: int | str) -> None:
    """An id is answered as it came (2026-07-28, basic, "Responses")."""
    assert id == msgspec.json.decode(jsonrpc.encode_id(id))


@given(objects, st.data())
def test_jsonrpc_cut_body_is_a_parse_error(params: dict[str, Any], data: st.DataObject) -> None:
    """A body that ends too early is not JSON, wherever it ends."""
    whole = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "a", "params": params})
    end = data.draw(st.integers(0, len(whole) - 1))

    for body in (whole[:end], b"[" + whole[:end]):
        with pytest.raises(ParseError):
            jsonrpc.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"[",
        b"ping",
        b"\xef\xbb\xbf{}",
        b'{"jsonrpc":"2.0","id":1,"method":"a"} {}',
        b'[{"jsonrpc":"2.0","id":1,"method":"a"},]',
        b'[{"jsonrpc":"2.0","id":1,"method":"a"}] 1',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":01}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\n"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":"\xff","method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\xff"}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\xc3"}}]',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\xed\xa0\x80"}}',
    ],
)
def test_jsonrpc_text_that_is_not_json_is_a_parse_error(body: bytes) -> None:
    """Neither bad JSON nor bad UTF-8 passes, however deep in the params it is."""
    with pytest.raises(ParseError) as caught:
        jsonrpc.decode(body)

    assert (caught.value.code, caught.value.status) == (-32700, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"1",
        b'"ping"',
        b"{}",
        b"[]",
        b'{"id":1,"method":"a"}',
        b'{"jsonrpc":"1.0","id":1,"method":"a"}',
        b'{"jsonrpc":2.0,"id":1,"method":"a"}',
        b'{"jsonrpc":"2.0","id":null,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"a"}',
        b'{"jsonrpc":"2.0","id":true,"method":"a"}',
        b'{"jsonrpc":"2.0","id":[1],"method":"a"}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":1}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":1,"error":"x"}',
    ],
)
def test_jsonrpc_json_that_is_no_message_is_an_invalid_request(body: bytes) -> None:
    """JSON that is neither request, notification nor response is rejected as such."""
    with pytest.raises(InvalidRequest) as caught:
        jsonrpc.decode(body)

    assert (caught.value.code, caught.value.status) == (-32600, 400)


def test_unknown_members_are_ignored() -> None:
    """A message may have other members, and a result may come with a null error."""
    message = one(b'{"jsonrpc":"2.0","id":1,"result":null,"error":null,"x":[{}]}')

    assert bytes(message.result) == b"null"


def test_jsonrpc_batch_serves_the_members_beside_a_faulty_one() -> None:
    """In a batch a fault takes the place of its message only."""
    batch = jsonrpc.decode(b'[1,{"jsonrpc":"2.0","method":"a"},{"id":2},{"jsonrpc":"2.0","id":3}]')

    assert isinstance(batch, list)
    assert list(map(type, batch)) == [InvalidRequest, Message, InvalidRequest, InvalidRequest]


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b'{"id":1,"method":"a"}', 1),
        (b'{"jsonrpc":"1.0","id":"a","x":[[[]]]}', "a"),
        (b'{"id":7,"params":"\xff"}', 7),
        (nested(200), 1),
        (b'{"id":1', None),
        (b'{"id":"\xff"}', None),
        (b'{"id":1,"params":NaN}', None),
        (b'{"id":null}', None),
        (b'{"id":true}', None),
        (b'{"id":1.5}', None),
        (b'{"id":{}}', None),
        (b"{}", None),
        (b'[{"id":1}]', None),
        (b'{"x":' + b"[" * 100_000, None),
    ],
)
def test_jsonrpc_id_of_a_faulty_message_is_found(body: bytes, id: int | str | None) -> None:
    """The error of a message that is refused has its id where it can be read."""
    assert id == jsonrpc.id_of(body)


@pytest.mark.parametrize("limit", [2, 3, 64, 200])
def test_jsonrpc_nesting_is_allowed_up_to_the_limit(limit: int) -> None:
    """`max_depth` levels pass, one more does not, and the message names the limit."""
    one(nested(limit), max_depth=limit)

    with pytest.raises(InvalidRequest, match=f"deeper than {limit} levels .*limit: max_depth"):
        jsonrpc.decode(nested(limit + 1), max_depth=limit)


@pytest.mark.parametrize(
    "inside",
    [
        b"[]," * 500 + b"1",
        b'"' + b"[{" * 500 + b'"',
        rb'"\"[[[[\\\"[[[["',
        rb'"\\","[[[[","\\\\"',
        b'{"[[[[":"]]]]"}',
        b'"\xe2\x80\x9c[[[[[["',
    ],
)
def test_jsonrpc_only_nested_brackets_count(inside: bytes) -> None:
    """Neither siblings nor brackets within strings make a body deep."""
    one(nested(6, inside), max_depth=7)

    with pytest.raises(InvalidRequest, match="deeper"):
        jsonrpc.decode(nested(7, b"[" + inside + b"]"), max_depth=7)


@given(values)
def test_jsonrpc_depth_is_that_of_the_value(value: Any) -> None:
    """The depth found by looking at brackets is the depth of the value."""
    body = msgspec.json.encode({"jsonrpc": "2.0", "method": "a", "params": value})
    true_depth = 1 + depth(value)

    one(body, max_depth=true_depth)
    if true_depth > 1:
        with pytest.raises(InvalidRequest, match="deeper"):
            jsonrpc.decode(body, max_depth=true_depth - 1)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b"[" * 500_000 + b"]" * 500_000,
        b"[]" * 500_000,
        b"[{" * 500_000,
        b"[}" * 500_000,
        b'"' * 1_000_000 + b"[" * 100,
        b'"' + rb"\"" * 500_000 + b"[" * 100,
        b"[" * 100 + b'"' + b"\\" * 1_000_000,
        rb'["' * 100 + rb"\"\\" * 250_000,
    ],
)
def test_hostile_body_takes_linear_time(body: bytes) -> None:
    """Any body of a megabyte is checked in linear time."""
    with pytest.raises((ParseError, InvalidRequest)):
        jsonrpc.decode(body)


def within(inside: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"a","params":[' + inside + b"]}"


@pytest.mark.parametrize("inside", [b"[]", b"{}", b'[{"a":[]}]', b'["[[[[{{{{"]'])
def test_jsonrpc_containers_are_counted(inside: bytes) -> None:
    """Each object and array counts, brackets in strings do not; the limit itself is allowed."""
    times = 700  # so much that strings are cut at the border of two pieces
    body = within(b",".join([b'"' + b"[" * 1000 + b'"', *([inside] * times)]))
    count = 2 + times * msgspec.json.encode(msgspec.json.decode(inside, type=Any)).replace(
        b"[[[[{{{{", b""
    ).translate(bytes.maketrans(b"{", b"[")).count(b"[")

    one(body, containers=count)
    with pytest.raises(TooLarge, match=rf"more than {count - 1} objects and arrays"):
        jsonrpc.decode(body, containers=count - 1)


def test_jsonrpc_strings_in_large_bodies_are_left_out() -> None:
    """A body is looked at in pieces, and a string may begin in one and end in the next."""
    body = within(b",".join([b'"' + b"[]" * 9000 + b'",[]'] * 100))

    one(body, max_depth=64, containers=102)
    with pytest.raises(TooLarge, match="objects and arrays"):
        jsonrpc.decode(body, containers=101)


@pytest.mark.parametrize(
    "member", [b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b"0", b'""', b"[]", b"null"]
)
def test_jsonrpc_batch_has_a_bound(member: bytes) -> None:
    """Members past the bound are not read; faulty members count, too."""
    assert len(jsonrpc.decode(b" [" + b",".join([member] * 3) + b"]", batch=3)) == 3  # type: ignore[arg-type]

    with pytest.raises(TooLarge, match=r"more than 3 messages") as raised:
        jsonrpc.decode(b"[" + b",".join([member] * 4) + b"]", batch=3)
    assert (raised.value.code, raised.value.status) == (-32600, 413)


@pytest.mark.parametrize("body", [b"[", b"[1,", b"[1}", b"[1] 2"])
def test_jsonrpc_batch_with_a_bound_is_json(body: bytes) -> None:
    """Text that is not JSON is not a batch."""
    with pytest.raises(ParseError, match="not JSON"):
        jsonrpc.decode(body, batch=3)


def test_jsonrpc_batch_with_a_bound_is_not_empty() -> None:
    """JSON-RPC 2.0, section 6: an empty array is an invalid request."""
    with pytest.raises(InvalidRequest, match="at least one message"):
        jsonrpc.decode(b"[]", batch=3)


def test_jsonrpc_id_that_is_a_structure_is_not_decoded() -> None:
    """Only a text or a number is an id; a large structure in its place costs nothing."""
    assert jsonrpc.id_of(b'{"id":[' + b"[]," * 1000 + b"[]]}") is None
    assert jsonrpc.id_of(b'{"id":true}') is None


def test_nesting_beyond_the_stack_is_rejected() -> None:
    """A very high limit causes no RecursionError."""
    for body in (nested(1_000_000), b"[" + nested(1_000_000) + b"]"):
        with pytest.raises(InvalidRequest, match="nests too deeply"):
            jsonrpc.decode(body, max_depth=10**7)


def test_jsonrpc_error_data_is_left_out_when_there_is_none() -> None:
    """An error without data has no such member."""
    assert b"data" not in jsonrpc.encode_error(1, InvalidParams("no"))


@pytest.mark.parametrize("id", [2**63, -(2**63) - 1, 10**20])
def test_jsonrpc_id_beyond_64_bits_is_rejected(id: int) -> None:
    """A stored call could not contain it, and would fail later."""
    with pytest.raises(InvalidRequest, match=r"\$\.id"):
        jsonrpc.decode(b'{"jsonrpc":"2.0","id":%d,"method":"a"}' % id)
    assert jsonrpc.id_of(b'{"id":%d}' % id) is None


@pytest.mark.parametrize("id", [2**63 - 1, -(2**63)])
def test_jsonrpc_id_of_64_bits_is_accepted(id: int) -> None:
    """The largest and the smallest."""
    assert id == one(b'{"jsonrpc":"2.0","id":%d,"method":"a"}' % id).id
