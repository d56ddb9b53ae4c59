"""`Resource`, a single resource, and `ResourceRepo`, all resources with one prefix of their URIs.

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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.component import (
    DescribedComponent,
    Metadata,
    annotations_of,
    check_metadata,
    set_options,
)
from genmcp.errors import ConfigurationError
from genmcp.hook import overrides
from genmcp.protocol.content import Annotations
from genmcp.protocol.value import CacheScope
from genmcp.uri_template import UriTemplate

# A scheme and the characters of a URI (RFC 3986, appendix A). The structure after the scheme is
# not checked.
_URI = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})*""")


class Description(Metadata, total=False):
    """The attributes of `ReadableComponent`, as keyword arguments."""

    mime_type: str
    annotations: Annotations | Mapping[str, Any]
    cache_ttl: float
    cache_scope: CacheScope


class ReadableComponent(DescribedComponent):
    """The base of `Resource` and `ResourceRepo`: the metadata of their list entries.

    Attributes:
        name: as listed. Default None.
        title: a name for people, as listed. Default None.
        description: as listed. Default: the docstring of the class.
        icons: as listed. Default: no icons.
        meta: the `_meta` of the list entry. Default None.
        mime_type: the media type of contents that do not state one. Default None.
        annotations: annotations, or a mapping of them (`{"audience": ["user"], "priority": 0.5}`).
            Default None.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.
    """

    __genmcp_hook__ = "read"

    name: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | Mapping[str, Any] | None = None

    def describe(self, attributes: Description) -> None:
        """Set *attributes* on this instance.

        Raises:
            ConfigurationError: an attribute does not exist.
        """
        set_options(self, type(self).__name__, attributes, Description.__annotations__)

    def check(self) -> None:
        """Check the attributes.

        Raises:
            ConfigurationError: an attribute is invalid; the message names it and the class.
        """
        owner = getattr(self, "__name__", type(self).__name__)
        attributes = {key: getattr(self, key) for key in Description.__annotations__}
        check_metadata(owner, attributes, annotations=Annotations)
        given = self.given_annotations
        if given is not None and given.priority is not None and not 0 <= given.priority <= 1:
            raise ConfigurationError(
                f"{owner}.annotations: priority must be 0 to 1, not {given.priority!r}"
            )

    @property
    def given_annotations(self) -> Annotations | None:
        """The annotations as a struct; None if they are not set.

        Raises:
            ConfigurationError: an annotation is unknown, or of another type.
        """
        return annotations_of(type(self).__name__, self.annotations, Annotations)


class Resource(ReadableComponent):
    """One resource: its URI, and its contents or a function that returns them.

        Resource("config://app", {"debug": False}, name="configuration")
        Resource("docs://{+page}", read_page, name="documentation", mime_type="text/markdown")

    Pass the attributes to the constructor, or set them in a subclass. A subclass may write the
    hook `read` instead of setting `content`.

    Attributes:
        uri: the URI; or a URI template (`files://{path}`), if *content* is a function. Required.
        content: one of the values that `genmcp.content` lists; or a function that returns such a
            value for each read, or None if the resource does not exist, as under `@resource`: its
            parameters are the variables of the template, or annotated `Channel`. Default: call
            `read`.
        name: as listed. Default: the name of the function, or the URI.
        title: a name for people, as listed. Default None.
        description: as listed. Default: the docstring of the function.
        icons: as listed. Default: no icons.
        meta: the `_meta` of the list entry. Default None.
        annotations: as of `ReadableComponent`. Default None.
        mime_type: the media type of contents that do not state one. Default None.
        size: the size in bytes, as listed. Default: the size of `content` if it is a value.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.

    Raises:
        ConfigurationError: an attribute does not exist. An invalid value of an attribute is
            reported when the resource is registered.
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
        """Return the contents of the resource, or a `Continue` to wait before.

        `genmcp.content` lists the values that are contents.

        Raises:
            ResourceNotFound: the resource does not exist. Returning None has the same effect.
        """
        raise NotImplementedError

    @property
    def has_function(self) -> bool:
        """Whether a function returns the contents, and not `read`; a template needs one."""
        if overrides(self, "read", Resource):
            return False
        return callable(self.content) or "{" in str(getattr(self, "uri", ""))

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
        if empty and not overrides(self, "read", Resource):
            raise ConfigurationError(f"{owner} {uri} has no content")


class ResourceRepo(ReadableComponent):
    """All resources with one prefix of their URIs. Subclass it and write `read`.

    The hooks may be `def` or `async def`. A `def list`, `read` or `complete` runs in a pool of
    threads, so that it may block. A `def parse_uri` runs on the event loop and must not block.

    Attributes:
        prefix: the prefix of the URIs. A URI that several components cover is served by the one
            that was registered first. Default: the text of `template` before its first variable.
        template: a URI template (RFC 6570). If it is set, the repository is listed among the
            resource templates, under `name`. Default None.
        name, title, description, icons, meta, annotations, mime_type: as of `ReadableComponent`;
            they are listed with the template.
        cache_ttl: seconds for which a client may cache contents and list entries. Default 0.
        cache_scope: "public" if a cache may share them between users, else "private". Default
            "private".
        scopes: the scopes of an access token that reads, subscriptions and completions need, see
            `ServerComponent`. Default: none.

    Raises:
        ConfigurationError: an attribute is invalid, or `read` is missing. Raised when the
            repository is registered.
    """

    description: str | None = None
    prefix: str | None = None
    template: str | UriTemplate | None = None

    def parse_uri(self, uri: str) -> Any:
        """Return the key that `read` gets for *uri*; None if no such resource exists.

        The default key is a dict of the variables of the template; *uri* itself without a template.
        """
        return uri if self.template is None else template_of(self.template).match(uri)

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return one page of the repository: a list of ResourceDefinition, or a list and a cursor.

        *cursor* is None for the first page, then the cursor that was returned with the previous
        page. A cursor is any JSON value. A page without a cursor is the last one. A page may have
        any number of resources: the suite divides them into pages of the size that clients get.

        Raises:
            InvalidParams: the cursor is out of date.
        """
        return ()

    def read(self, key: Any, channel: Channel, /) -> Any:
        """Return the contents of the resource *key*, or a `Continue` to wait before.

        *key* is the result of `parse_uri`. `genmcp.content` lists the values that are contents.

        Raises:
            ResourceNotFound: the resource does not exist. Returning None has the same effect.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        """Return completions of *value* for the variable *argument* of the template.

        *context* has the values of other variables. The hook returns a list of texts, the likeliest
        first; or a `Completion`; or None for a variable without completions.
        """
        return None


@lru_cache
def template_of(template: str | UriTemplate) -> UriTemplate:
    """Return *template* as a `UriTemplate`; parse it if it is a str."""
    return template if isinstance(template, UriTemplate) else UriTemplate(template)
