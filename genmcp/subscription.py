"""Notifications of changes: a list has changed, a resource was updated."""

from threading import Lock
from weakref import WeakSet

from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange, updated
from genmcp.errors import ContractError

__all__ = ["ChangeNotifier", "Listener"]


class Listener:
    """A receiver of changes: a mux, which notifies its clients."""

    def announce(self, change: ServerChange) -> None:
        """Receive a change. It is called from any thread, and must not wait for clients."""


class ChangeNotifier:
    """Announces changes to every mux that serves the server, and so to all clients that listen.

    A server of your own makes one and returns it as its `changes`; a `Suite` has one, and a tool
    finds that of its server in `channel.changes`. Without a mux it has no effect.

    It may be used from any thread, and does not wait for clients: a change that is announced again
    before it was sent is sent once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: WeakSet[Listener] = WeakSet()

    def tools_list_changed(self) -> None:
        """Announce that the list of tools has changed."""
        self._announce(TOOLS)

    def prompts_list_changed(self) -> None:
        """Announce that the list of prompts has changed."""
        self._announce(PROMPTS)

    def resources_list_changed(self) -> None:
        """Announce that the list of resources or templates has changed."""
        self._announce(RESOURCES)

    def resource_updated(self, uri: str) -> None:
        """Announce that the contents of the resource *uri* have changed.

        Clients that have subscribed to exactly this URI are notified.

        Raises:
            ContractError: *uri* is not a text.
        """
        if not isinstance(uri, str):
            raise ContractError(f"resource_updated takes a URI, not {uri!r}")
        self._announce(updated(uri))

    def follow(self, listener: Listener) -> None:
        """Announce each change from now on to *listener*, which is referenced weakly."""
        with self._lock:
            self._listeners.add(listener)

    def _announce(self, change: ServerChange) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.announce(change)
