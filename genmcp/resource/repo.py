"""Repositories: many resources under one prefix.

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

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from genmcp.channel import Channel
from genmcp.resource.described import Described
from genmcp.uri_template.template import UriTemplate

__all__ = ["ResourceRepo", "template_of"]


class ResourceRepo(Described):
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
        """Return what the resource holds: whatever `genmcp.resource.contents` knows.

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
