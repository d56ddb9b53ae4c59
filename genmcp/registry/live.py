"""Registries that change: one that is replaced at each change, and one for each session."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Lock, RLock
from typing import Any
from weakref import WeakMethod, WeakSet, finalize

from genmcp._mux.mux import Mux
from genmcp.composite.errors import RegistrySessionNotFound
from genmcp.composite.server import CompositeServer
from genmcp.errors import ConfigurationError
from genmcp.registry.in_process import MuxMember, close_connections
from genmcp.registry.registry import Registry, Status
from genmcp.server import Server
from genmcp.suite.suite import Suite

logger = logging.getLogger("genmcp.registry")

Watcher = Callable[[int], None]


def _checked(registry: Registry) -> Registry:
    if not isinstance(registry, Registry):
        raise ConfigurationError(f"a Registry is needed, not {registry!r}")
    return registry


class LiveRegistry:
    """A registry that changes while it is served. It may be used from any thread.

    Args:
        registry: the first registry. Default: an empty one.

    Attributes:
        version: the number of changes so far.
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = _checked(Registry() if registry is None else registry)
        self._lock = RLock()
        self._watchers: dict[object, Watcher] = {}
        # The muxes that a registry made for servers that were removed later. `_release` closes
        # each after its endpoint was closed.
        self._removed: WeakSet[Mux] = WeakSet()
        self.version = 0

    def __repr__(self) -> str:
        return f"<LiveRegistry {self.version}: {self._registry!r}>"

    @property
    def current(self) -> Registry:
        """The current registry, which is immutable."""
        return self._registry

    def update(self, change: Callable[[Registry], Registry]) -> Registry:
        """Replace the registry by the result of *change*, and return it.

        If *change* raises, the registry stays as it is. Otherwise the watchers are called, in this
        thread; an exception of a watcher is logged. The lock is held until they have returned, so
        that updates of several threads run one after another.

        Raises:
            ConfigurationError: *change* does not return a registry.
        """
        with self._lock:
            before = self._registry
            self._registry = changed = _checked(change(before))
            self._removed |= before._owned - changed._owned
            self.version += 1
            for watcher in list(self._watchers.values()):
                try:
                    watcher(self.version)
                except Exception:
                    logger.exception("%r failed to handle a change of %r", watcher, self)
        return changed

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call *watcher* with the new version after each change.

        Returns:
            A function that removes the watcher.
        """
        key = object()
        with self._lock:
            self._watchers[key] = watcher

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def server(
        self,
        *,
        name: str = "registry",
        version: str = "1.0.0",
        separator: str = "/",
        page_size: int = 1000,
    ) -> CompositeServer:
        """Return one server that has the components of all enabled servers, and changes with them.

        Its clients are notified of changes. See `Registry.server` for the arguments.

        Raises:
            ConfigurationError: *separator* or *page_size* is invalid.
        """

        def members() -> Mapping[str, MuxMember]:
            return self._registry._members

        server = CompositeServer(
            members,
            name=name,
            version=version,
            separator=separator,
            page_size=page_size,
            list_timeout=self._registry._list_timeout,
        )
        # The watcher references the server weakly. Otherwise a registry that lasts as long as the
        # process would keep each composite server alive.
        changed = WeakMethod(server.members_changed)

        def watcher(version: int) -> None:
            if (method := changed()) is not None:
                method()

        finalize(server, self.watch(watcher))
        return server

    async def aclose(self) -> None:
        """Do what `Registry.aclose` does, also for servers that were removed."""
        with self._lock:
            removed = list(self._removed)
        for mux in removed:
            await self._release(mux)
        await self._registry.aclose()

    @property
    def _unreleased(self) -> "set[Mux]":
        """The muxes of removed servers that are not closed yet."""
        with self._lock:
            return {*self._removed} - self._registry._owned

    async def _release(self, mux: Mux) -> None:
        """Close *mux* if a registry made it, and its server was removed and not registered again.

        `RegistryEndpoint` calls this method after it has closed the endpoint of *mux*.
        """
        with self._lock:
            removed = mux in self._removed and mux not in self._registry._owned
            self._removed.discard(mux)
        if removed:
            await close_connections(mux)
            await mux.aclose()

    # The methods of `Registry`, applied to the current registry.

    def register(self, server: Server | Mux, *, name: str | None = None) -> None:
        """Register *server*, replacing a server of the same name; see `Registry.register`."""
        self.update(lambda registry: registry.register(server, name=name))

    def unregister(self, name: str) -> None:
        """Remove the server *name*. An unknown name is ignored."""
        self.update(lambda registry: registry.unregister(name))

    def clear(self) -> None:
        """Remove all servers."""
        self.set_servers([])

    def set_servers(self, servers: Iterable[Server | Mux]) -> None:
        """Replace all servers by *servers*; see `Registry.set_servers`."""
        self.update(lambda registry: registry.set_servers(servers))

    def toggle(self, name: str, enabled: bool) -> None:
        """Enable or disable the server *name*.

        Raises:
            UnknownServer: no server has this name.
        """
        self.update(lambda registry: registry.toggle(name, enabled))

    def reconnect(self, name: str) -> None:
        """Enable the server *name*, and remove its error.

        Raises:
            UnknownServer: no server has this name.
        """
        self.update(lambda registry: registry.reconnect(name))

    def reload(self) -> None:
        """Notify all watchers and clients as if all servers had changed."""
        self.update(lambda registry: registry)


GLOBAL = LiveRegistry()
"""A registry for the whole process."""


class SessionRegistries:
    """A registry for each session, which is any hashable value. May be used from any thread.

    Args:
        make: returns the registry with which `add_server` begins a session. Default `Registry`.
    """

    def __init__(self, make: Callable[[], Registry] = Registry) -> None:
        self._make = make
        self._lock = Lock()
        self._live: dict[Hashable, LiveRegistry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def register(self, session: Hashable, registry: Registry | LiveRegistry | None) -> None:
        """Set the registry of *session*. None changes nothing.

        Raises:
            ConfigurationError: *registry* is not a registry.
        """
        if registry is not None:
            live = registry if isinstance(registry, LiveRegistry) else LiveRegistry(registry)
            with self._lock:
                self._live[session] = live

    def unregister(self, session: Hashable) -> None:
        """Remove the registry of *session*. An unknown session is ignored."""
        with self._lock:
            self._live.pop(session, None)

    def get(self, session: Hashable) -> LiveRegistry:
        """Return the registry of *session*.

        Raises:
            RegistrySessionNotFound: the session has no registry.
        """
        live = self._live.get(session)
        if live is None:
            raise RegistrySessionNotFound(session)
        return live

    def update(self, session: Hashable, change: Callable[[Registry], Registry]) -> Registry:
        """Apply `LiveRegistry.update` to the registry of *session*.

        Raises:
            RegistrySessionNotFound: the session has no registry.
        """
        return self.get(session).update(change)

    def add_server(self, session: Hashable, server: Server | Mux | Mapping[str, Any]) -> None:
        """Register *server* for *session*. A session without a registry gets one from *make*.

        Args:
            session: the session.
            server: a server, a mux, or the arguments of a `Suite`: `name`, `tools` and so on.

        Raises:
            ConfigurationError: *server* is not a server.
        """
        made = server if isinstance(server, Server | Mux) else _suite_of(server)
        with self._lock:
            live = self._live.get(session)
            if live is None:
                live = self._live[session] = LiveRegistry(self._make())
        live.register(made)

    async def status(self, session: Hashable) -> dict[str, Status]:
        """Return the status of each server of *session*; empty if it does not have a registry."""
        live = self._live.get(session)
        return {} if live is None else await live.current.status()


def _suite_of(arguments: Mapping[str, Any]) -> Suite:
    if not isinstance(arguments, Mapping):
        raise ConfigurationError(f"add_server takes a server, or a mapping, not {arguments!r}")
    return Suite(**{"name": "unnamed", "version": "1.0.0", **arguments})
