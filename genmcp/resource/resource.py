"""Resources: one by its URI, or a repository of all those under a prefix.

class Books(ResourceRepo):
    \"\"\"The books of the library.\"\"\"

    name = "book"
    template = "library://books/{id}"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        page, cursor = await books_after(cursor)
        return [ResourceDefinition(f"library://books/{b.id}", b.title) for b in page], cursor

    async def read(self, key: dict[str, str], channel: Channel) -> Any:
        return await book(key["id"])  # None: there is none
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Final

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.component import DescribedComponent, check_continues
from genmcp.errors import ConfigurationError
from genmcp.hook import Hook, check_call
from genmcp.metadata import Metadata, annotations_of, check_metadata
from genmcp.protocol.content import Annotations
from genmcp.protocol.result import CacheScope
from genmcp.uri_template.template import UriTemplate

__all__ = ["Description", "ReadableComponent", "Resource", "ResourceRepo", "template_of"]

# RFC 3986, appendix A, as far as a URI can be told from other texts.
_URI = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})*""")

_ARGUMENTS: Final = ("uri", "channel")
_REST: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Description(Metadata, total=False):
    """The attributes of `ReadableComponent`, as keyword arguments."""

    mime_type: str
    annotations: Annotations | Mapping[str, Any]
    cache_ttl: float
    cache_scope: CacheScope


class ReadableComponent(DescribedComponent):
    """The base of `Resource` and `ResourceRepo`: the metadata of their entries in listings.

    name, title, description, icons, meta: as listed; the default of description is the docstring
        of the class.
    mime_type: the type of its contents that do not have one of their own.
    annotations: Annotations, or a mapping of them (`{"audience": ["user"], "priority": 0.5}`).
    cache_ttl, cache_scope: for how many seconds a client may cache what it read or listed, and
        whether the cache may be shared (`"public"`; default `"private"`).
    """

    __genmcp_hook__ = "read"

    name: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | Mapping[str, Any] | None = None

    def describe(self, attributes: Description) -> None:
        """Set *attributes* on this instance.

        Raises:
            ConfigurationError: there is no such attribute.
        """
        for key, value in attributes.items():
            if key not in Description.__annotations__:
                raise ConfigurationError(f"{type(self).__name__} takes no {key}")
            setattr(self, key, value)

    def check(self) -> None:
        """Check the attributes.

        Raises:
            ConfigurationError: the message names the class, the attribute, and what it takes.
        """
        owner = type(self).__name__
        said = {key: getattr(self, key) for key in Description.__annotations__}
        check_metadata(owner, said, annotations=Annotations)
        given = self.given_annotations
        if given is not None and given.priority is not None and not 0 <= given.priority <= 1:
            raise ConfigurationError(
                f"{owner}.annotations: priority must be 0 to 1, not {given.priority!r}"
            )

    @property
    def given_annotations(self) -> Annotations | None:
        """The annotations as a struct.

        Raises:
            ConfigurationError: one is of another type, or there is no such annotation.
        """
        return annotations_of(type(self).__name__, self.annotations, Annotations)


class Resource(ReadableComponent):
    """One resource: its URI, and what it holds or a function that tells.

        Resource("config://app", {"debug": False}, name="configuration")
        Resource("docs://*", read_page, name="documentation", mime_type="text/markdown")

    uri: a URI; one that ends with `*` is for every URI that begins with what stands before it,
        and is listed as a template.
    content: whatever `genmcp.resource.route` knows; or a function, `def` (which may block) or
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
        """Return what it holds: whatever `genmcp.resource.route` knows; or a `Continue`.

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
        check_continues(owner, self.content, self)
        wanted = _wanted(owner, self.content)
        return Hook(partial(_call, self.content, wanted), iscoroutinefunction(self.content))

    def check(self) -> None:
        """Check the attributes, the URI and the size among them."""
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


class ResourceRepo(ReadableComponent):
    """A repository. Subclass it, say what its URIs are, and write `read`.

    prefix: what its URIs begin with; the first registered that fits a URI is asked for it.
        Without one it is what stands before the first variable of the template.
    template: RFC 6570; lists the repository among the templates, under `name`.
    name, title, description, icons, meta, annotations, mime_type: what the listing of the
        template says of it; the class's docstring is its description unless it gives one.
    cache_ttl, cache_scope: for how many seconds a client may keep what it read or listed, and
        whether anybody may have it (`"public"`) or only who asked (`"private"`, the default).

    The hooks may be `def` or `async def`. A `def list`, `read` or `complete` runs in a pool of
    threads, so that it may block; a `def parse_uri` runs at once.

    Raises:
        ConfigurationError: when it is registered, if one of these is wrong, or `read` is missing.
    """

    description: str | None = None
    prefix: str | None = None
    template: str | UriTemplate | None = None

    def parse_uri(self, uri: str) -> Any:
        """Return what `read` gets for *uri*; None if there is no such resource.

        Without one of your own: the variables of the template, or *uri* without a template.
        """
        return uri if self.template is None else template_of(self.template).match(uri)

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return a page of the resources, as ResourceDefinition; or a pair: page, next cursor.

        A *cursor* is None at first, then what was returned: any JSON. None ends the list. Pages
        may have any size; a client gets what fits one of its own.

        Raises:
            InvalidParams: the cursor is out of date.
        """
        return ()

    def read(self, key: Any, channel: Channel, /) -> Any:
        """Return what the resource holds: whatever `genmcp.resource.route` knows.

        Or a `Continue`, to wait for something or to ask the client.

        *key* is what `parse_uri` returned. None: there is no such resource.

        Raises:
            ResourceNotFound: there is none.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        """Return how the variable *argument* of the template, typed as far as *value*, may go on.

        *context* has the variables that are chosen already. Return texts, the likeliest first, a
        `Completion`, or None if there is nothing to say.
        """
        return None


@lru_cache
def template_of(template: str | UriTemplate) -> UriTemplate:
    """Return the template a repository gives, made once."""
    return template if isinstance(template, UriTemplate) else UriTemplate(template)


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
