"""What a command is about, found by its name: `module:attribute`."""

import importlib
import sys
from pathlib import Path
from typing import Any

from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint

__all__ = ["load", "mux_of"]


def load(name: str) -> Any:
    """Return what *name*, `module:attribute`, means; modules of the current folder come first.

    Raises:
        ConfigurationError: there is no such module, or it has no such attribute.
    """
    module, _, path = name.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigurationError(f"{name!r} is not module:attribute, such as shop.app:mux")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that it imports
        raise ConfigurationError(f"{name}: there is no module {error.name!r} in {folder}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigurationError(f"{name}: there is no {attribute!r} in {module}")
        found = getattr(found, attribute)
    return found


def mux_of(name: str) -> Mux:
    """Return the mux that *name* means: of itself, of an endpoint, or made for a server.

    Raises:
        ConfigurationError: it means none of these.
    """
    found = load(name)
    if isinstance(found, Mux):
        return found
    if isinstance(found, Endpoint):
        return found.mux
    if isinstance(found, Server):
        return Mux(found)
    raise ConfigurationError(
        f"{name} is a {type(found).__name__}: name a Mux, an Endpoint, or a Server such as a Suite"
    )
