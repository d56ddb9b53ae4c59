"""Log messages about failures that many tasks meet at once."""

import logging

import pytest

from genmcp.log_throttle import LogThrottle


def test_throttle_logs_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of tasks that meet a full store do not fill the log; the rest is counted."""
    now = 0.0
    throttle = LogThrottle(logging.getLogger("genmcp"), clock=lambda: now)
    for _ in range(1000):
        throttle.log(logging.WARNING, "%s is full", "the store")
    now = 1.0
    throttle.log(logging.WARNING, "%s is full", "the store")

    expected = ["the store is full", "the store is full (and 999 more like this)"]
    assert expected == [record.getMessage() for record in caplog.records]
