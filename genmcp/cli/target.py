"""What a command is about, found by its name: `module:attribute`."""

import importlib
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint

__all__ = ["ATTRIBUTE", "Broken", "load", "mux_of"]

ATTRIBUTE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Broken(Exception):
    """A module cannot be imported; the text is the traceback from its own first line on."""


def load(name: str) -> Any:
    """Return what *name*, `module:attribute`, means; modules of the current folder come first.

    Raises:
        ConfigurationError: there is no such module, or it has no such attribute.
        Broken: there is one, which cannot be imported.
    """
    module, _, path = name.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigurationError(f"{name!r} is not module:attribute, such as shop.app:mux")
    if module.endswith(".py"):
        meant = f"{module.removesuffix('.py').replace('/', '.').strip('.')}:{path}"
        raise ConfigurationError(f"{name!r} names a file, not a module; is {meant} meant?")
    folder = str(Path.cwd())
    if folder != sys.path[0]:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from None  # one that it imports
        raise ConfigurationError(f"{name}: there is no module {error.name!r} in {folder}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except Exception as error:
        raise _broken(module, error) from None
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
    if isinstance(found, type):
        what = f"the class {found.__name__}: name one that is made of it, such as"
    else:
        what = f"a {type(found).__name__}: name"
    raise ConfigurationError(f"{name} is {what} a Mux, an Endpoint, or a Server such as a Suite")


def _broken(module: str, error: Exception) -> Broken:
    lines = traceback.format_exception(type(error), error, _own(error.__traceback__))
    return Broken(f"{''.join(lines)}genmcp: {module} cannot be imported\n")


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Return *trace* without its beginning, which is here and in the machinery of imports."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace
