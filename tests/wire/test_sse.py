"""Encoding of server-sent events; test_sse_reader.py tests the reader."""

import msgspec
import pytest

from genmcp.wire import sse
from genmcp.wire.sse import EventReader, SseEvent


@pytest.mark.parametrize("data", ['{"a":\n1}', '{\r\n"a": 1\r}', '[\n\n"\\n"\n]'])
def test_sse_json_of_several_lines_stays_one_event(data: str) -> None:
    """Foreign JSON may contain line breaks; they do not end the event."""
    (event,) = EventReader().feed(sse.event(data.encode()))

    assert isinstance(event, SseEvent)
    assert msgspec.json.decode(data) == msgspec.json.decode(event.data)


def test_sse_prime_is_an_event_that_carries_an_id_only() -> None:
    """2025-11-25: a client that is cut off right behind it can resume."""
    reader = EventReader()

    assert reader.feed(sse.prime(b"s/0")) == [SseEvent(b"", "message", "s/0")]
    assert reader.last_id == "s/0"


def test_sse_retry_and_comment_are_no_events() -> None:
    """They give the retry delay, and keep the connection open."""
    reader = EventReader()

    assert reader.feed(sse.retry(70) + sse.COMMENT) == []
    assert reader.retry == 70


def test_sse_endpoint_is_an_event_of_its_own_name() -> None:
    """Clients of 2024-11-05 wait for it before they send anything."""
    assert EventReader().feed(sse.endpoint(b"/sse?session=x")) == [
        SseEvent(b"/sse?session=x", "endpoint")
    ]
