"""Where a mux keeps what outlives a request, and who works on its jobs."""

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store
from genmcp.tasks.engine import Engine, LocalEngine
from genmcp.tasks.external import ExternalQueue
from genmcp.tasks.options import JobOptions

__all__ = ["Storage", "storage_of"]

_VARIABLE: Final = "GENMCP_STORE"


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Where what outlives a request is kept, and who works on jobs.

    store: a Store, or its URL, such as `sqlite:///jobs.db`. engine: what carries jobs to workers;
    the store's own by default. foreign: the queues of others that an `ExternalJob` may name.
    jobs: how this process works on jobs.
    """

    store: Store | str
    engine: Engine | None = None
    foreign: Sequence[ExternalQueue] = ()
    jobs: JobOptions = JobOptions()

    def opened(self) -> "tuple[Store, Engine]":
        """Return the store and the engine.

        Raises:
            ConfigurationError: the URL names no store, or nothing would carry its jobs.
        """
        store = open_store(self.store) if isinstance(self.store, str) else self.store
        engine = self.engine
        if engine is None:
            if store.deliveries is None:
                raise ConfigurationError(
                    f"store: {store!r} carries no jobs; give a Storage with an engine"
                )
            engine = LocalEngine(store.deliveries)
        return store, engine


def storage_of(given: "Store | str | Storage | None") -> tuple[Storage, bool]:
    """Return what *given*, or else the environment, says; and whether either says anything.

    Raises:
        ConfigurationError: it is none of these.
    """
    chosen = given or os.environ.get(_VARIABLE)
    if not chosen:
        return Storage(store=MemoryStore()), False
    if isinstance(chosen, Storage):
        return chosen, True
    if not isinstance(chosen, Store | str):
        raise ConfigurationError(f"store takes a Store, its URL, or a Storage, not {chosen!r}")
    return Storage(store=chosen), True
