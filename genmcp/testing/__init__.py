"""A client for tests: the real `Client`, connected in memory to the real endpoint.

    async with connect(suite) as client:
        result = await client.call("add", {"a": 1, "b": 2})

    assert result.content == [TextContent("3.0")]

No socket is opened, but every request takes the whole path of one over HTTP: headers, revision,
limits, event streams.

`replace_dependency` puts a fake in the place of a dependency.

`Issuer` signs access tokens, and publishes its keys; it needs the extra `auth`.
"""

from typing import TYPE_CHECKING, Any

from genmcp.client.subscriptions import Notification
from genmcp.dependencies import replace_dependency
from genmcp.testing.client import RecordingClient, connect

if TYPE_CHECKING:
    from genmcp.testing.issuer import Issuer
else:

    def __getattr__(name: str) -> Any:
        """Import `Issuer` at its first access: it needs an extra."""
        if name != "Issuer":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from genmcp.testing.issuer import Issuer

        return Issuer


__all__ = ["Issuer", "Notification", "RecordingClient", "connect", "replace_dependency"]
