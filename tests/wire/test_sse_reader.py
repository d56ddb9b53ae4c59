"""Event streams as a client reads them: the HTML standard's, "Server-sent events"."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.wire import sse
from genmcp.wire.lines import OversizedMessage
from genmcp.wire.sse import EventReader, SseEvent

# Surrogates are not text, and a line break belongs to the format.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))
ids = texts.filter(lambda id: "\0" not in id)


def events(*chunks: bytes, most: int = 1000) -> list[SseEvent | OversizedMessage]:
    reader = EventReader(most)
    return [event for chunk in chunks for event in reader.feed(chunk)]


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Return *stream* in pieces, cut anywhere."""
    ends = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


@given(st.lists(st.tuples(texts, st.none() | ids), max_size=4), st.data())
def test_events_of_the_server_are_read(
    written: list[tuple[str, str | None]], data: st.DataObject
) -> None:
    """Events that `sse.event` writes come back whole, wherever the chunks are cut."""
    stream = b"".join(
        sse.event(text.encode(), None if id is None else id.encode()) for text, id in written
    )
    last, expected = "", []
    for text, id in written:
        last = last if id is None else id
        expected.append(SseEvent(text.encode(), "message", last))

    assert expected == events(*data.draw(cut(stream)), most=1_000_000)


@given(st.lists(st.sampled_from(b"data:id \r\n\0\xef\xbb\xbf7")).map(bytes), st.data())
def test_sse_reader_does_not_depend_on_how_the_stream_is_cut(
    stream: bytes, data: st.DataObject
) -> None:
    """The events do not depend on how the stream is split into chunks."""
    whole = events(stream, most=3)

    assert whole == events(*data.draw(cut(stream)), most=3)
    assert whole == events(*(stream[at : at + 1] for at in range(len(stream))), most=3)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [SseEvent(b"a")]),
        (b"data: a\r\n\r\n", [SseEvent(b"a")]),
        (b"data: a\r\r", [SseEvent(b"a")]),
        (b"data: a\r\n\n", [SseEvent(b"a")]),
        (b"data: a\r\r\ndata: b\n\r", [SseEvent(b"a"), SseEvent(b"b")]),
        (b"data:a\n\n", [SseEvent(b"a")]),
        (b"data:  a\n\n", [SseEvent(b" a")]),
        (b"data: a\ndata\ndata: b\n\n", [SseEvent(b"a\n\nb")]),
        (b"data\n\n", [SseEvent(b"")]),
        (b"data: \xff\n\n", [SseEvent(b"\xff")]),
        (b"data: a\n", []),
        (b"data: a\ndata: b", []),
        (b"\n\n\n", []),
        (b":\n\n: comment\ndata: a\n:\n\n", [SseEvent(b"a")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [SseEvent(b"a", "ping"), SseEvent(b"b")]),
        (b"event: ping\n\ndata: a\n\n", [SseEvent(b"a")]),
        (b"event:\ndata: a\n\n", [SseEvent(b"a")]),
        (b"event: \xff\ndata: a\n\n", [SseEvent(b"a", "�")]),
        (b"other: x\n data: x\nDATA: x\ndata: a\n\n", [SseEvent(b"a")]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [SseEvent(b"a", id="1"), SseEvent(b"b", id="1")]),
        (b"id: 1\n\ndata: a\n\n", [SseEvent(b"a", id="1")]),
        (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [SseEvent(b"a", id="1"), SseEvent(b"b")]),
        (
            b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n",
            [SseEvent(b"a", id="1"), SseEvent(b"b", id="1")],
        ),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [SseEvent(b"b")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [SseEvent(b"a")]),
        (sse.COMMENT, []),
        (sse.retry(250), []),
        (sse.prime(b"s/0"), [SseEvent(b"", id="s/0")]),
        (sse.endpoint(b"/messages"), [SseEvent(b"/messages", "endpoint")]),
    ],
)
def test_stream_is_interpreted_by_the_standard(stream: bytes, expected: list[SseEvent]) -> None:
    """HTML, "Interpreting an event stream", rule by rule; the data is bytes as they came."""
    assert expected == events(stream)


@pytest.mark.parametrize(
    ("stream", "retry"),
    [
        (b"retry: 100\n\n", 100),
        (b"retry: 100\nretry: 7\n", 7),
        (b"retry: 1.5\n\n", None),
        (b"retry: -1\n\n", None),
        ("retry: \u0661\n\n".encode(), None),
        (b"retry: " + b"9" * 500 + b"\n\n", None),
    ],
)
def test_sse_reader_keeps_the_time_to_reconnect(stream: bytes, retry: int | None) -> None:
    """It is digits, not too many of them, and nothing else."""
    reader = EventReader()
    reader.feed(stream)

    assert retry == reader.retry


def test_sse_reader_resumes_behind_the_last_whole_event() -> None:
    """The id of an event that is cut off is not one to resume from."""
    reader = EventReader()
    reader.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert reader.last_id == "1"

    reader.feed(b"\n")
    assert reader.last_id == "2"


@given(st.integers(0, 40), st.integers(0, 700), st.booleans(), st.data())
def test_events_after_a_too_long_one_are_read(
    most: int, size: int, in_lines: bool, data: st.DataObject
) -> None:
    """Past the limit there is its size and how it began, in one line or many; then the next."""
    text = bytes(ord("a") + at % 26 for at in range(size))
    if in_lines:
        text = b"\n".join(text[at : at + 5] for at in range(0, size, 5))
    stream = b"".join(b"data: %b\n" % line for line in text.split(b"\n"))

    reader = EventReader(most)
    got = [
        event
        for chunk in data.draw(cut(b"id: 1\n" + stream + b"\ndata:\n\n"))
        for event in reader.feed(chunk)
    ]

    first, second = got
    assert second == SseEvent(b"", id="1")
    assert reader.last_id == "1"
    if len(text) <= most:
        assert SseEvent(text, id="1") == first
    else:
        assert isinstance(first, OversizedMessage)
        assert len(text) == first.size
        assert text.startswith(first.head)


def test_event_of_many_lines_takes_no_more_memory_than_its_data() -> None:
    """A server may send as many empty lines as an event may have bytes."""
    reader = EventReader()
    tracemalloc.start()
    try:
        for _ in range(100):
            reader.feed(b"data\n" * 1000)
        (event,) = reader.feed(b"data\n\n")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert event == SseEvent(b"\n" * 100_000)
    assert most < 500_000


@pytest.mark.parametrize("name", [b"event", b"id", b"", b"retry", b"other"])
def test_sse_reader_ignores_any_other_line_that_is_too_long(name: bytes) -> None:
    """A name or an id that is cut short would be another one."""
    line = name + b": " + b"7" * 400 + b"\n"

    assert events(line + b"data: a\n\n", most=10) == [SseEvent(b"a")]
