"""Types by name: what a packed question says of the type it asks for."""

from functools import reduce
from importlib import import_module
from typing import Any

from genmcp.errors import ConfigurationError

__all__ = ["name_of", "type_named"]


def name_of(kind: type) -> str:
    """Return the name under which *kind* is found again in any process: `module:qualname`.

    Raises:
        ConfigurationError: it is not found there: local to a function, or replaced.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = _found(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise ConfigurationError(
            f"elicit: {kind.__qualname__} is not found again as {name}. The answer may come to "
            f"another process: define the type at the top level of a module"
        )
    return name


def type_named(name: str) -> Any:
    """Return the type of that *name*.

    Raises:
        ConfigurationError: there is none in this process.
    """
    try:
        return _found(name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the type that a question asked for, {name}, is not found in this process: {error}. "
            f"It was asked by a process that runs other code"
        ) from error


def _found(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return reduce(getattr, qualname.split("."), import_module(module))
