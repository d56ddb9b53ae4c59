"""Resources that are known one by one."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Final

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.continuing import check_goes_on
from genmcp.errors import ConfigurationError
from genmcp.hook import Hook, check_call
from genmcp.resource.described import Described, Description

__all__ = ["Resource"]

# RFC 3986, appendix A, as far as a URI can be told from other texts.
_URI = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})*""")

_ARGUMENTS: Final = ("uri", "channel")
_REST: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Resource(Described):
    """One resource: its URI, and what it holds or a function that tells.

        Resource("config://app", {"debug": False}, name="configuration")
        Resource("docs://*", read_page, name="documentation", mime_type="text/markdown")

    uri: a URI; one that ends with `*` is for every URI that begins with what stands before it,
        and is listed as a template.
    content: whatever `genmcp.resource.contents` knows; or a function, `def` (which may block) or
        `async def`, that returns it when it is read. The function gets the URI asked for if it
        has a parameter `uri`, and the channel if it has one called `channel`; None from it
        means that there is no such resource.
    name: what its listing calls it; otherwise the function's name, or the URI.
    title, description, icons, meta, annotations: what its listing says of it; the function's
        docstring is its description unless one is given.
    mime_type: the type of what it holds, where that does not say.
    size: in bytes; it is listed, and known by itself where a value is given.
    cache_ttl, cache_scope: for how many seconds a client may keep what it read or listed, and
        whether anybody may have it (`"public"`) or only who asked (`"private"`, the default).

    A subclass may say all this with attributes, and write `read` in place of a content.

    Raises:
        ConfigurationError: there is no such attribute; when it is registered, if one is wrong.
    """

    description: str | None = None
    uri: str
    content: Any = msgspec.UNSET
    size: int | None = None

    def __init__(
        self,
        uri: str | None = None,
        content: Any = msgspec.UNSET,
        *,
        size: int | None = None,
        **attributes: Unpack[Description],
    ) -> None:
        for key, value in (("uri", uri), ("size", size)):
            if value is not None:
                setattr(self, key, value)
        if content is not msgspec.UNSET:
            self.content = content
        self.describe(attributes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'uri', '')}>"

    def read(self, uri: str, channel: Channel, /) -> Any:
        """Return what it holds: whatever `genmcp.resource.contents` knows; or a `Continue`.

        Raises:
            ResourceNotFound: there is no such resource; None says the same.
        """
        raise NotImplementedError

    @property
    def reader(self) -> Hook | None:
        """What tells what it holds; None if the content is a value.

        Raises:
            ConfigurationError: the function yields, or wants arguments nobody gives.
        """
        own = Hook.of(self, "read", Resource)
        if own is not None or not callable(self.content):
            return own
        owner = f"{type(self).__name__} {self.uri}"
        check_call(owner, self.content)
        check_goes_on(owner, self.content, goes_on=self.continues is not None)
        wanted = _wanted(owner, self.content)
        return Hook(partial(_call, self.content, wanted), iscoroutinefunction(self.content))

    def check(self) -> None:
        """Check what is said here, the URI and the size too."""
        super().check()
        owner = type(self).__name__
        uri = getattr(self, "uri", None)
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            raise ConfigurationError(f"{owner}.uri must be a URI (RFC 3986), not {uri!r}")
        if not isinstance(self.size, int | None) or (self.size is not None and self.size < 0):
            raise ConfigurationError(f"{owner}.size must be bytes, not {self.size!r}")
        empty = self.content is msgspec.UNSET or self.content is None
        if empty and Hook.of(self, "read", Resource) is None:
            raise ConfigurationError(f"{owner} {uri} has no content")


def _wanted(owner: str, function: Callable[..., Any]) -> Sequence[str]:
    """Return which of the arguments there are *function* has parameters for."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # of some functions written in C nobody knows
        return ()
    for parameter in parameters:
        optional = parameter.default is not Parameter.empty or parameter.kind in _REST
        if parameter.name not in _ARGUMENTS and not optional:
            raise ConfigurationError(
                f"{owner}: its function gets `uri` and `channel`; there is no {parameter.name!r}"
            )
    return [parameter.name for parameter in parameters if parameter.name in _ARGUMENTS]


def _call(function: Callable[..., Any], wanted: Sequence[str], uri: str, channel: Channel) -> Any:
    given = {"uri": uri, "channel": channel}
    return function(**{name: given[name] for name in wanted})
