"""The settings of a mux that have no constant default: its store, its clock and its secret."""

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from genmcp.errors import ConfigurationError
from genmcp.server import Server
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store

logger = logging.getLogger("genmcp")

SECRET_VARIABLE: Final = "GENMCP_SECRET"
_STORE_VARIABLE: Final = "GENMCP_STORE"


def checked_server(server: Server) -> Server:
    """Return *server*.

    Raises:
        ConfigurationError: it is not one server.
    """
    if isinstance(server, Server):
        return server
    if callable(getattr(server, "server", None)):
        raise ConfigurationError(
            f"{server!r} is not one server: give what its server() returns; "
            "a RegistryEndpoint serves each server of a registry as well"
        )
    raise ConfigurationError(f"server must be an instance of a Server (a Suite), not {server!r}")


def chosen_store(
    given: Store | str | None, clock: Callable[[], float] | None
) -> tuple[Store, bool]:
    """Return the store to use, and whether `Mux.aclose` closes it: all but the default store."""
    chosen = given or os.environ.get(_STORE_VARIABLE)
    if not chosen:
        return MemoryStore(clock=clock), False
    if not isinstance(chosen, Store | str):
        raise ConfigurationError(f"store must be a Store or its URL, not {chosen!r}")
    return open_store(chosen) if isinstance(chosen, str) else chosen, True


def chosen_clock(store: Store) -> Callable[[], float]:
    """Return the clock by which sealed values expire, common to the processes that open them.

    Without a shared store they have only the time of day in common.
    """
    # Looked up at each call, so that a test can replace it.
    return store.now if store.shared else lambda: time.time()


def chosen_secret(
    given: str | bytes | Sequence[str | bytes] | None, store: Store
) -> str | bytes | Sequence[str | bytes]:
    """Return the secret to use; a random one only for a store that is not shared."""
    chosen = given or os.environ.get(SECRET_VARIABLE)
    if chosen:
        return chosen
    if store.shared:
        raise ConfigurationError(
            f"a shared store needs one secret for all its processes: secret= or {SECRET_VARIABLE}"
        )
    if (workers := _workers()) > 1:
        logger.warning(
            "no secret is configured and there are %s workers: each rejects the sessions of the "
            "others. Give all of them one secret (secret= or %s).",
            workers,
            SECRET_VARIABLE,
        )
    return secrets.token_bytes(32)


def _workers() -> int:
    """Return the number of processes that serve this application, as far as it is visible.

    It is visible in WEB_CONCURRENCY, or in the command line that a worker inherits from its parent.
    """
    counts = [os.environ.get("WEB_CONCURRENCY", "1")]
    for option, value in pairwise([*sys.argv, ""]):
        name, _, attached = option.partition("=")
        if name in ("--workers", "-w"):
            counts.append(attached or value)
    return max([1, *(int(count) for count in counts if count.isdigit())])
