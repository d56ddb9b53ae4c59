"""What a server says without being asked: a list has changed, a resource was updated."""

from threading import Lock
from weakref import WeakSet

from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, Change, updated
from genmcp.errors import ContractError

__all__ = ["Announcer", "Listener"]


class Listener:
    """Whoever is told of each change: a mux, which passes it on to its clients."""

    def announce(self, change: Change) -> None:
        """Take in that something has changed. From any thread; it does not wait for clients."""


class Announcer:
    """Says what has changed to every mux that serves the server, and so to every listener.

    A server of your own makes one and returns it as its `announcer`; a `Suite` has one, and a
    tool finds that of its server in `channel.announcer`. Before a mux is made it speaks to nobody.

    It may be used from any thread, and does not wait for clients: what is said again before it
    was sent is sent once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: WeakSet[Listener] = WeakSet()

    def tools_list_changed(self) -> None:
        """Say that other tools are listed now."""
        self._announce(TOOLS)

    def prompts_list_changed(self) -> None:
        """Say that other prompts are listed now."""
        self._announce(PROMPTS)

    def resources_list_changed(self) -> None:
        """Say that other resources, or templates, are listed now."""
        self._announce(RESOURCES)

    def resource_updated(self, uri: str) -> None:
        """Say that the resource *uri* holds something else now.

        Whoever subscribed to this very URI hears of it.

        Raises:
            ContractError: *uri* is no text.
        """
        if not isinstance(uri, str):
            raise ContractError(f"resource_updated takes a URI, not {uri!r}")
        self._announce(updated(uri))

    def follow(self, listener: Listener) -> None:
        """Tell *listener* of each change from now on, for as long as somebody else holds it."""
        with self._lock:
            self._listeners.add(listener)

    def _announce(self, change: Change) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.announce(change)
