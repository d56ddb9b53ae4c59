"""Server-sent events: the HTML standard's, "Server-sent events"."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.wire import sse
from genmcp.wire.sse import Decoder, Event

# Surrogates are no text, and a line break is the format's own.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))
ids = texts.filter(lambda id: "\0" not in id)


def events(*chunks: bytes) -> list[Event]:
    decoder = Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@st.composite
def cut(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    """Return a stream in pieces, cut anywhere."""
    stream = draw(streams)
    ends = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


messages = st.lists(st.tuples(texts, st.none() | ids), max_size=4)


@given(messages, st.data())
def test_sse_message_is_read_as_it_was_written(
    said: list[tuple[str, str | None]], data: st.DataObject
) -> None:
    """Events that `event` writes come back whole, wherever the chunks are cut."""
    stream = b"".join(
        sse.event(text.encode(), None if id is None else id.encode()) for text, id in said
    )

    got = events(*data.draw(cut(st.just(stream))))

    assert [text for text, _ in said] == [event.data for event in got]
    last = ""
    for (_, id), event in zip(said, got, strict=True):
        last = last if id is None else id
        assert ("message", last, None) == (event.event, event.id, event.retry)


@given(cut(st.lists(st.sampled_from(b"data:id \r\n\0\xef\xbb\xbf7")).map(bytes)))
def test_sse_events_do_not_depend_on_how_the_stream_is_cut(chunks: list[bytes]) -> None:
    """What a stream says is the same in one piece, in some, and byte by byte."""
    stream = b"".join(chunks)
    whole = events(stream)

    assert whole == events(*chunks)
    assert whole == events(*(stream[at : at + 1] for at in range(len(stream))))


@pytest.mark.parametrize("data", ['{"a":\n1}', '{\r\n"a": 1\r}', '[\n\n"\\n"\n]'])
def test_sse_json_of_several_lines_stays_one_event(data: str) -> None:
    """JSON that somebody else wrote may hold line breaks; they do not end the event."""
    (event,) = events(sse.event(data.encode()))

    assert msgspec.json.decode(data) == msgspec.json.decode(event.data)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [Event("a")]),
        (b"data: a\r\n\r\n", [Event("a")]),
        (b"data: a\r\r", [Event("a")]),
        (b"data: a\r\n\n", [Event("a")]),
        (b"data: a\n\r\n", [Event("a")]),
        (b"data: a\r\r\ndata: b\n\r", [Event("a"), Event("b")]),
        (b"data:a\n\n", [Event("a")]),
        (b"data:  a\n\n", [Event(" a")]),
        (b"data: a\ndata\ndata: b\n\n", [Event("a\n\nb")]),
        (b"data\n\n", [Event("")]),
        (b"data: \xff\n\n", [Event("�")]),
        (b"data: a\n", []),
        (b"data: a\ndata: b", []),
        (b"\n\n\n", []),
        (b":\n\n: comment\ndata: a\n:\n\n", [Event("a")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [Event("a", "ping"), Event("b")]),
        (b"event: ping\n\ndata: a\n\n", [Event("a")]),
        (b"event:\ndata: a\n\n", [Event("a")]),
        (b"other: x\n data: x\nDATA: x\ndata: a\n\n", [Event("a")]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [Event("a", id="1"), Event("b", id="1")]),
        (b"id: 1\n\ndata: a\n\n", [Event("a", id="1")]),
        (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [Event("a", id="1"), Event("b")]),
        (b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n", [Event("a", id="1"), Event("b", id="1")]),
        (b"retry: 100\ndata: a\n\ndata: b\n\n", [Event("a", retry=100), Event("b")]),
        (b"retry: 100\n\n", [Event("", retry=100)]),
        (b"retry: 1.5\ndata: a\n\n", [Event("a")]),
        (b"retry: -1\ndata: a\n\n", [Event("a")]),
        ("retry: \u0661\ndata: a\n\n".encode(), [Event("a")]),
        (b"retry: " + b"9" * 5000 + b"\ndata: a\n\n", [Event("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [Event("b")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [Event("a")]),
        (b"data: \xef\xbb\xbfa\n\n", [Event("\ufeffa")]),
        (sse.COMMENT, []),
        (sse.retry(250), [Event("", retry=250)]),
        (sse.prime(b"s/0"), [Event("", id="s/0")]),
    ],
)
def test_sse_stream_is_interpreted_as_the_standard_says(
    stream: bytes, expected: list[Event]
) -> None:
    """HTML, "Interpreting an event stream", rule by rule.

    One thing is ours: a time to reconnect is told of even where no data comes with it.
    """
    assert expected == events(stream)


def test_sse_event_is_told_of_with_its_last_byte() -> None:
    """A carriage return ends a line at once; a line feed behind it counts for nothing."""
    decoder = Decoder()

    assert [] == decoder.feed(b"data: a\r")
    assert [] == decoder.feed(b"")
    assert [Event("a")] == decoder.feed(b"\n\r")
    assert [] == decoder.feed(b"\n")
    assert [Event("b")] == decoder.feed(b"data: b\n\n")


def test_sse_id_counts_once_its_event_is_whole() -> None:
    """A client that is cut off within an event resumes before it, not behind it."""
    decoder = Decoder()
    decoder.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")

    assert "1" == decoder.last_id

    decoder.feed(b"\n")

    assert "2" == decoder.last_id


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 95],
        [b"data: " + b"x" * 40 + b"\n", b"data: " + b"x" * 50],
        [b"data: " + b"x" * 95 + b"\n\n"],
        [b"x"] * 101,
        [b"data:\n"] * 21,
    ],
)
def test_sse_event_past_the_limit_is_refused(chunks: list[bytes]) -> None:
    """What is kept of a stream is bounded, however it comes (DESIGN: every queue is)."""
    decoder = Decoder(max_size=100)

    with pytest.raises(ValueError, match="larger than 100 bytes"):
        for chunk in chunks:
            decoder.feed(chunk)


def test_sse_limit_is_of_one_event() -> None:
    """A stream of many events, or of many comments, goes on for ever."""
    decoder = Decoder(max_size=100)

    for _ in range(50):
        assert [Event("x" * 80)] == decoder.feed(b"data: " + b"x" * 80 + b"\n\n")
        assert [] == decoder.feed(b": " + b"x" * 80 + b"\n")


def test_sse_line_feed_belongs_to_the_return_right_before_it_only() -> None:
    """A return earlier in a chunk does not swallow the line feed that begins the next one."""
    decoder = Decoder()

    assert [] == decoder.feed(b"\rdata: c")
    assert [Event("c")] == decoder.feed(b"\n\n")


def test_sse_endpoint_is_an_event_of_its_own_name() -> None:
    """Clients of 2024-11-05 wait for it before they send anything."""
    assert [Event("/sse?session=x", "endpoint")] == events(sse.endpoint(b"/sse?session=x"))
