"""Background jobs and tasks: work that outlives its request, and the engines that deliver it."""

import os
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from genmcp.errors import ConfigurationError
from genmcp.stores import redacted
from genmcp.stores.store import Store
from genmcp.tasks.engine import Engine, LocalEngine

__all__ = ["open_engine"]

ENGINE_VARIABLE: Final = "GENMCP_ENGINE"
"""The environment variable with the default of `Mux(engine=)`."""

_GROUP: Final = "genmcp.engines"  # of the entry points of other packages: name = callable(url)

# The class of each name. It is imported when a setting names it, and has a method `from_url`.
_ENGINES: Final = {
    "docket": ("genmcp.tasks.docket", "DocketEngine"),
    "procrastinate": ("genmcp.tasks.procrastinate", "ProcrastinateEngine"),
}


def open_engine(setting: Engine | str | None, store: Store) -> Engine:
    """Return the engine that the setting `Mux(engine=)`, or else `GENMCP_ENGINE`, names.

    Another package adds a name by an entry point in the group `genmcp.engines`: its value is a
    callable that returns an `Engine` for a URL.

    Args:
        setting: an engine, `"store"` (the deliveries of *store*), a name such as `"docket"` (on the
            server of *store*), or a name and the URL of a server (`"docket+redis://host:6379/0"`).
            Default: the environment variable, else `"store"`.
        store: keeps the tasks.

    Raises:
        ConfigurationError: the engine is unknown, its extra is not installed, or it cannot use the
            server or *store*.
    """
    setting = setting or os.environ.get(ENGINE_VARIABLE) or "store"
    if isinstance(setting, Engine):
        return setting
    if not isinstance(setting, str):
        raise ConfigurationError(f"engine must be an Engine or its name, not {setting!r}")
    if setting == "store":
        if store.deliveries is None:
            raise ConfigurationError(
                f"engine: {store!r} does not deliver jobs; choose an engine (engine=, or "
                f"{ENGINE_VARIABLE}): {_known()}"
            )
        return LocalEngine(store.deliveries)
    name, _, url = setting.partition("+")
    factory = _factory(name)
    if factory is None:
        raise ConfigurationError(f"engine: {redacted(setting)!r} is unknown; use {_known()}")
    if not store.shared:
        raise ConfigurationError(
            f"engine: {name} delivers jobs to several processes, which must share the store; "
            f"{store!r} is not shared: choose another one (store=, or GENMCP_STORE)"
        )
    url = url or store.url
    if not url:
        raise ConfigurationError(
            f"engine: {name} needs the URL of a server, and {store!r} has none: write "
            f"{name}+scheme://host"
        )
    engine = factory(url)
    if not isinstance(engine, Engine):
        raise ConfigurationError(
            f"engine: {name} is opened by {factory!r}, which returned {type(engine).__name__} and "
            f"not an Engine"
        )
    return engine


def _factory(name: str) -> Any:
    if name in _ENGINES:
        module, kind = _ENGINES[name]
        return getattr(import_module(module), kind).from_url
    for entry in entry_points(group=_GROUP, name=name):
        return entry.load()
    return None


def _known() -> str:
    names = sorted({*_ENGINES, *(entry.name for entry in entry_points(group=_GROUP))})
    return ", ".join(["store", *(f"{name}, {name}+scheme://host" for name in names)])
