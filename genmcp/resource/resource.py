"""Resources: single ones, and repositories of all with a common prefix.

class Books(ResourceRepo):
    \"\"\"The books of the library.\"\"\"

    name = "book"
    template = "library://books/{id}"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        page, cursor = await books_after(cursor)
        return [ResourceDefinition(f"library://books/{b.id}", b.title) for b in page], cursor

    async def read(self, key: dict[str, str], channel: Channel) -> Any:
        return await book(key["id"])  # None if there is no such book
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Final

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.component import (
    DescribedComponent,
    Metadata,
    annotations_of,
    check_continues,
    check_metadata,
)
from genmcp.errors import ConfigurationError
from genmcp.hook import Hook, check_call
from genmcp.protocol.content import Annotations
from genmcp.protocol.value import CacheScope
from genmcp.uri_template import UriTemplate

# RFC 3986, appendix A, as far as it distinguishes a URI from other texts.
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
    cache_ttl, cache_scope: seconds for which a client may cache contents and list entries, and
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
            ConfigurationError: one of them does not exist.
        """
        for key, value in attributes.items():
            if key not in Description.__annotations__:
                raise ConfigurationError(f"{type(self).__name__} takes no {key}")
            setattr(self, key, value)

    def check(self) -> None:
        """Check the attributes.

        Raises:
            ConfigurationError: one is invalid; the message names the class and the attribute.
        """
        owner = type(self).__name__
        attributes = {key: getattr(self, key) for key in Description.__annotations__}
        check_metadata(owner, attributes, annotations=Annotations)
        given = self.given_annotations
        if given is not None and given.priority is not None and not 0 <= given.priority <= 1:
            raise ConfigurationError(
                f"{owner}.annotations: priority must be 0 to 1, not {given.priority!r}"
            )

    @property
    def given_annotations(self) -> Annotations | None:
        """The annotations as a struct.

        Raises:
            ConfigurationError: an annotation is unknown, or of another type.
        """
        return annotations_of(type(self).__name__, self.annotations, Annotations)


class Resource(ReadableComponent):
    """One resource: its URI, and its contents or a function that returns them.

        Resource("config://app", {"debug": False}, name="configuration")
        Resource("docs://*", read_page, name="documentation", mime_type="text/markdown")

    uri: a URI; one that ends with `*` is for every URI with the prefix before it, and is listed as
        a template.
    content: a value as `genmcp.content` lists them; or a function, `def` (which may block)
        or `async def`, that returns one for each read. The function gets the requested URI if it
        has a parameter `uri`, and the channel if it has a parameter `channel`; it returns None
        if the resource does not exist.
    name: as listed; the default is the name of the function, or the URI.
    title, description, icons, meta, annotations: as listed; the default of description is the
        docstring of the function.
    mime_type: the type of contents that do not have one of their own.
    size: in bytes, as listed; the default is the size of a content that is a value.
    cache_ttl, cache_scope: seconds for which a client may cache contents and list entries, and
        whether the cache may be shared (`"public"`; default `"private"`).

    A subclass may set them as attributes, and write `read` instead of a content.

    Raises:
        ConfigurationError: an attribute does not exist; when it is registered: one is invalid.
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
        """Return the contents, as `genmcp.content` lists them; or a `Continue`.

        Raises:
            ResourceNotFound: the resource does not exist; returning None is the same.
        """
        raise NotImplementedError

    @property
    def reader(self) -> Hook | None:
        """The hook that returns its contents; None if the content is a value.

        Raises:
            ConfigurationError: the function yields, or has other parameters than it may have.
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
        """Check the attributes, including the URI and the size."""
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
    """A repository. Subclass it, set its prefix or template, and write `read`.

    prefix: the prefix of its URIs; the first registered component that covers a URI serves it. The
        default is the text before the first variable of the template.
    template: RFC 6570; the repository is listed among the templates, under `name`.
    name, title, description, icons, meta, annotations, mime_type: as listed with the template; the
        default of description is the docstring of the class.
    cache_ttl, cache_scope: seconds for which a client may cache contents and list entries, and
        whether the cache may be shared (`"public"`; default `"private"`).

    The hooks may be `def` or `async def`. A `def list`, `read` or `complete` runs in a pool of
    threads, so that it may block; a `def parse_uri` runs at once.

    Raises:
        ConfigurationError: when it is registered: one of them is invalid, or `read` is missing.
    """

    description: str | None = None
    prefix: str | None = None
    template: str | UriTemplate | None = None

    def parse_uri(self, uri: str) -> Any:
        """Return the key of *uri* for `read`; None if it does not exist.

        The default is a dict of the variables of the template, or *uri* without a template.
        """
        return uri if self.template is None else template_of(self.template).match(uri)

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return a page of the resources, as ResourceDefinition; or a pair: page, next cursor.

        *cursor* is None for the first page, then the cursor that was returned with the previous
        page, any JSON value. A page without a cursor is the last one. Pages may have any size; a
        client gets pages of its own size.

        Raises:
            InvalidParams: the cursor is out of date.
        """
        return ()

    def read(self, key: Any, channel: Channel, /) -> Any:
        """Return the contents, as `genmcp.content` lists them; or a `Continue`.

        *key* is the result of `parse_uri`.

        Raises:
            ResourceNotFound: it does not exist; returning None is the same.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        """Return completions of *value* for the variable *argument* of the template.

        *context* has the values of other variables. Return texts, the likeliest first, a
        `Completion`, or None for no completions.
        """
        return None


@lru_cache
def template_of(template: str | UriTemplate) -> UriTemplate:
    """Return the template of a repository, parsed once."""
    return template if isinstance(template, UriTemplate) else UriTemplate(template)


def _wanted(owner: str, function: Callable[..., Any]) -> Sequence[str]:
    """Return those of the arguments `uri` and `channel` that *function* has parameters for."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # a function written in C without a signature
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
