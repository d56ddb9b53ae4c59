"""Newline-delimited messages: whole ones come out, wherever the stream is cut."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.wire.lines import LineReader, OversizedMessage, frame


def read(*chunks: bytes, most: int = 1000) -> list[bytes | OversizedMessage]:
    reader = LineReader(most)
    return [each for chunk in chunks for each in reader.feed(chunk)] + reader.finish()


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Return *stream* in pieces, cut anywhere."""
    ends = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.lists(values, max_size=5), st.data())
def test_lines_messages_are_read_as_they_were_written(
    messages: list[object], data: st.DataObject
) -> None:
    """The output of `frame` is restored, wherever the chunks are split."""
    stream = b"".join(frame(msgspec.json.encode(each)) for each in messages)

    got = read(*data.draw(cut(stream)), most=1_000_000)

    assert messages == [msgspec.json.decode(each) for each in got if isinstance(each, bytes)]


@given(st.lists(st.sampled_from(b"ab \r\n\xff")).map(bytes), st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(stream: bytes, data: st.DataObject) -> None:
    """The messages do not depend on how the stream is split into chunks."""
    whole = read(stream, most=4)

    assert whole == read(*data.draw(cut(stream)), most=4)
    assert whole == read(*(stream[at : at + 1] for at in range(len(stream))), most=4)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", []),
        (b"{}\n", [b"{}"]),
        (b"{}\r\n[]\n", [b"{}", b"[]"]),
        (b"{}\n[]", [b"{}", b"[]"]),
        (b"\n \r\n\t\n", []),
        (b"\xff\xfe\n{}\n", [b"\xff\xfe", b"{}"]),
    ],
)
def test_lines_end_in_a_line_feed(stream: bytes, expected: list[bytes]) -> None:
    """A carriage return before it belongs to it; blank lines are nothing; bytes stay bytes."""
    assert expected == read(stream)


@pytest.mark.parametrize("body", [b'{"a":\n1}', b'{\r\n"a": 1\r}'])
def test_lines_frame_puts_a_message_on_one_line(body: bytes) -> None:
    """Foreign JSON may contain line breaks; they become blanks."""
    (line,) = read(frame(body))

    assert msgspec.json.decode(line) == {"a": 1}  # type: ignore[arg-type]


@given(st.integers(1, 400), st.integers(0, 400), st.data())
def test_lines_after_a_too_long_one_are_read(most: int, size: int, data: st.DataObject) -> None:
    """One past the limit gives its size and how it began; the next is read."""
    line = bytes(ord("a") + at % 26 for at in range(size))
    expected = [OversizedMessage(size, line[:256])] if size > most else [line] if line else []

    assert read(*data.draw(cut(line + b"\nb\n")), most=most) == [*expected, b"b"]


@pytest.mark.parametrize(
    ("head", "id"),
    [
        (b'{"jsonrpc":"2.0","id":12,"result":{"text":"aaaa', 12),
        (b'{"id" : 7 }', 7),
        (b'{"jsonrpc":"2.0","result":{"text":"aaaa', None),
        (b'{"jsonrpc":"2.0","id":1', None),
        (b'{"jsonrpc":"2.0","id":"1","result":{', None),
        (b'{"jsonrpc":"2.0","id":12,"method":"ping"', None),
    ],
)
def test_too_long_line_has_the_id_of_its_response(head: bytes, id: int | None) -> None:
    """The id is read from the head, if it is there, whole, and that of an answer."""
    assert id == OversizedMessage(10**9, head).id
