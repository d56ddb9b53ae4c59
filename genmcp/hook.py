"""Hooks: the functions of a user, `def` or `async def`."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError

__all__ = ["Hook", "Visible", "check_call", "overrides", "visibility"]

Visible = Callable[[str | None], bool]
"""Whether a component exists for a principal, None being an unauthenticated client."""


class Hook(msgspec.Struct, frozen=True):
    """A function of a user: an `async def` runs where it is called, a `def` in a thread."""

    function: Callable[..., Any]
    is_async: bool

    @classmethod
    def of(cls, provider: object, name: str, kind: type) -> "Hook | None":
        """Return the hook *name* of *provider*; None if it has only that of its base, *kind*.

        Raises:
            ConfigurationError: it yields.
        """
        if not overrides(provider, name, kind):
            return None
        function = getattr(provider, name)
        check_call(f"{type(provider).__name__}.{name}", function)
        return cls(function, inspect.iscoroutinefunction(function))

    async def __call__(self, channel: Channel, *arguments: Any) -> Any:
        """Call the function, in a thread of *channel* if it may block."""
        if self.is_async:
            return await self.function(*arguments)
        value = await channel.in_thread(self.function, *arguments)
        return await value if inspect.isawaitable(value) else value


def overrides(provider: object, name: str, kind: type) -> bool:
    """Return whether *provider* overrides the hook *name* of its base, *kind*."""
    function = getattr(provider, name, None)
    base = getattr(kind, name, None)
    return function is not None and (
        base is None or getattr(function, "__func__", None) is not base
    )


def check_call(owner: str, call: Callable[..., Any]) -> None:
    """Check that *call* is not a generator function.

    Raises:
        ConfigurationError: it yields.
    """
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigurationError(
            f"{owner} yields; return one result, and report progress with channel.progress"
        )


def visibility(provider: Any, kind: type) -> Visible | None:
    """Return the `visible` of *provider*; None if it does not override that of *kind*.

    Raises:
        ConfigurationError: it is not a `def`.
    """
    if not overrides(provider, "visible", kind):
        return None
    visible: Visible = provider.visible
    if not callable(visible) or inspect.iscoroutinefunction(visible):
        owner = getattr(provider, "__name__", type(provider).__name__)
        raise ConfigurationError(
            f"{owner}.visible must be a def: it is asked for each entry of a list"
        )
    return visible
