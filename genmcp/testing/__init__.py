"""A client for tests: the real `Client`, connected in memory to the real endpoint.

    async with connect(suite) as client:
        result = await client.call("add", {"a": 1, "b": 2})

    assert result.content == [TextContent("3.0")]

No socket is opened, but every request takes the whole path of one over HTTP: headers, revision,
limits, event streams.

`genmcp.testing.contracts` has the test suites that stores and engines pass.
"""

from genmcp.client.subscriptions import Notification
from genmcp.testing.client import RecordingClient, connect

__all__ = ["Notification", "RecordingClient", "connect"]
