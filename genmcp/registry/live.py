"""Registries that change: the one that counts now, and those of sessions."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Lock, RLock
from typing import Any
from weakref import WeakSet

from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.registry.errors import RegistrySessionNotFound
from genmcp.registry.in_process import end_all
from genmcp.registry.registry import Registry, Status
from genmcp.registry.together import Together
from genmcp.server import Server
from genmcp.suite.suite import Suite

__all__ = ["GLOBAL", "LiveRegistry", "SessionRegistries"]

logger = logging.getLogger("genmcp.registry")

Watcher = Callable[[int], None]


def _checked(registry: Registry) -> Registry:
    if not isinstance(registry, Registry):
        raise ConfigurationError(f"a Registry is needed, not {registry!r}")
    return registry


class LiveRegistry:
    """The registry that counts now. It is read and changed from any thread.

    version: how often it has changed.
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = _checked(Registry() if registry is None else registry)
        self._lock = RLock()
        self._watchers: dict[object, Watcher] = {}
        self._left: WeakSet[Mux] = WeakSet()
        self.version = 0

    def __repr__(self) -> str:
        return f"<LiveRegistry {self.version}: {self._registry!r}>"

    @property
    def current(self) -> Registry:
        """The registry as it is now; it stays as it is."""
        return self._registry

    def update(self, change: Callable[[Registry], Registry]) -> Registry:
        """Put what *change* makes of the registry in its place, and return it.

        Nobody else changes it meanwhile; if *change* raises, nothing has changed. Then all that
        watch are told, in this thread; one that raises is logged, and the others are told.

        Raises:
            ConfigurationError: *change* does not return a registry.
        """
        with self._lock:
            before = self._registry
            self._registry = changed = _checked(change(before))
            self._left |= before.made - changed.made
            self.version += 1
            for watcher in list(self._watchers.values()):
                try:
                    watcher(self.version)
                except Exception:
                    logger.exception("%r failed to take in a change of %r", watcher, self)
        return changed

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Tell *watcher* the new version after each change; return what ends that."""
        key = object()
        with self._lock:
            self._watchers[key] = watcher

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def server(
        self, *, name: str = "registry", version: str = "1.0.0", separator: str = "/"
    ) -> Together:
        """Return one server that has what all enabled ones have, for whatever serves a server.

        It changes as they do, and its clients hear of that. The options are those of
        `Registry.server`.

        Raises:
            ConfigurationError: no tool may be called so.
        """
        return Together(
            lambda: self._registry.enabled,
            self.watch,
            name=name,
            version=version,
            separator=separator,
        )

    async def aclose(self) -> None:
        """Do what `Registry.aclose` does, also for servers that have gone since."""
        with self._lock:
            left = list(self._left)
        for mux in left:
            await self.release(mux)
        await self._registry.aclose()

    @property
    def left(self) -> "set[Mux]":
        """The muxes that were made for servers that have gone, and are to be released."""
        with self._lock:
            return {*self._left} - self._registry.made

    async def release(self, mux: Mux) -> None:
        """Close *mux* if it was made for a server that has gone.

        A `RegistryEndpoint` does so when it has ended what was open there.
        """
        with self._lock:
            gone = mux in self._left and mux not in self._registry.made
            self._left.discard(mux)
        if gone:
            await end_all(mux)
            await mux.aclose()

    # What `Registry` has, done to the one that counts now.

    def register(self, server: Server | Mux, *, name: str | None = None) -> None:
        """Register *server*, in place of one of its name."""
        self.update(lambda registry: registry.register(server, name=name))

    def unregister(self, name: str) -> None:
        """Forget the server *name*, if there is one."""
        self.update(lambda registry: registry.unregister(name))

    def clear(self) -> None:
        """Forget all servers."""
        self.update(lambda registry: registry.set_servers([]))

    def set_servers(self, servers: Iterable[Server | Mux]) -> None:
        """Let these be the servers; those that were disabled stay so."""
        self.update(lambda registry: registry.set_servers(servers))

    def toggle(self, name: str, enabled: bool) -> None:
        """Enable the server *name*, or not.

        Raises:
            ServerNotFound: there is none.
        """
        self.update(lambda registry: registry.toggle(name, enabled))

    def reconnect(self, name: str) -> None:
        """Enable the server *name*, and forget its error.

        Raises:
            ServerNotFound: there is none.
        """
        self.update(lambda registry: registry.reconnect(name))

    def reload(self) -> None:
        """Let all that watch, and all clients, look at the tools anew."""
        self.update(lambda registry: registry)


GLOBAL = LiveRegistry()
"""The servers of this process that everybody may use."""


class SessionRegistries:
    """A registry for each session: any hashable value. From any thread.

    make: the registry that a session begins with when a server is added to it.
    """

    def __init__(self, make: Callable[[], Registry] = Registry) -> None:
        self._make = make
        self._lock = Lock()
        self._live: dict[Hashable, LiveRegistry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def register(self, session: Hashable, registry: Registry | LiveRegistry | None) -> None:
        """Let *registry* be that of *session*; None changes nothing.

        Raises:
            ConfigurationError: it is no registry.
        """
        if registry is not None:
            live = registry if isinstance(registry, LiveRegistry) else LiveRegistry(registry)
            with self._lock:
                self._live[session] = live

    def unregister(self, session: Hashable) -> None:
        """Forget the registry of *session*, if there is one."""
        with self._lock:
            self._live.pop(session, None)

    def get(self, session: Hashable) -> LiveRegistry:
        """Return the registry of *session*: `toggle`, `set_servers` and the like are its methods.

        Raises:
            RegistrySessionNotFound: there is none.
        """
        live = self._live.get(session)
        if live is None:
            raise RegistrySessionNotFound(session)
        return live

    def update(self, session: Hashable, change: Callable[[Registry], Registry]) -> Registry:
        """Do to the registry of *session* what `LiveRegistry.update` does.

        Raises:
            RegistrySessionNotFound: there is none.
        """
        return self.get(session).update(change)

    def add_server(self, session: Hashable, server: Server | Mux | Mapping[str, Any]) -> None:
        """Register *server* for *session*, which has a registry from then on.

        It may be a mapping of its `name`, and of what else a Suite takes: `tools` and the like.

        Raises:
            ConfigurationError: it is no server.
        """
        made = server if isinstance(server, Server | Mux) else _suite_of(server)
        with self._lock:
            live = self._live.get(session)
            if live is None:
                live = self._live[session] = LiveRegistry(self._make())
        live.register(made)

    async def status(self, session: Hashable) -> dict[str, Status]:
        """Return how each server of *session* stands; a session without a registry has none."""
        live = self._live.get(session)
        return {} if live is None else await live.current.status()


def _suite_of(body: Mapping[str, Any]) -> Suite:
    if not isinstance(body, Mapping):
        raise ConfigurationError(f"add_server takes a server, or a mapping, not {body!r}")
    return Suite(**{"name": "unnamed", "version": "1.0.0", **body})
