"""The resources of a server: which one a URI is, and all of them in lists."""

from bisect import insort
from collections.abc import Sequence
from functools import partial
from operator import neg
from typing import Any

from genmcp.completion import Completer
from genmcp.listing import Item, Lister, Listing
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.resource.route import ResourceRoute

__all__ = ["Resources"]


class Resources:
    """Routes in the order they were declared; of two for one URI the first one counts.

    A value: to add or remove one, make another; routes can be used again.

    routes: those that answer for something. listing: what is listed of them, each URI by who
    answers for it. templates: their templates, each once.
    """

    def __init__(self, routes: Sequence[ResourceRoute]) -> None:
        self._exact: dict[str, ResourceRoute] = {}
        self._prefixes: dict[str, ResourceRoute] = {}
        self._lengths: list[int] = []  # of the prefixes, each once, the longest first
        self.routes = tuple(route for route in routes if self._add(route))
        self._of_template: dict[str, ResourceRoute] = {}
        for route in self.routes:
            if route.template is not None:
                self._of_template.setdefault(route.template.uri_template, route)
        sources = [each for each in map(self._source, self.routes) if each is not None]
        self.listing = Listing(sources, ListResourcesResult, "resources")
        templates = [
            _item(text, route.template, route) for text, route in self._of_template.items()
        ]
        self.templates = Listing(templates, ListResourceTemplatesResult, "resource_templates")

    def __repr__(self) -> str:
        return f"<Resources, {len(self.routes)} routes>"

    def __len__(self) -> int:
        return len(self.routes)

    @property
    def completes(self) -> bool:
        """Whether any of them has something to complete: the `completions` capability."""
        completers = (route.completer for route in self.routes)
        return any(each.hook for each in completers if each is not None)

    def find(self, uri: str) -> ResourceRoute | None:
        """Return the first declared route for *uri*, or None; all cost the same to find."""
        return self._exact.get(uri) or self._covering(uri)

    def completer(self, uri_template: str, principal: str | None) -> Completer | None:
        """Return what completes this template for *principal*, None if there is none."""
        route = self._of_template.get(uri_template)
        return route.completer if route is not None and route.is_visible(principal) else None

    def _add(self, route: ResourceRoute) -> bool:
        """Take *route* in, unless those before it answer for every URI it has.

        So, of two prefixes that fit one URI, the longer one was always declared first.
        """
        prefix = route.prefix
        if prefix is None:
            if self.find(route.pattern) is not None:
                return False
            self._exact[route.pattern] = route
            return True
        if self._covering(prefix) is not None:
            return False
        self._prefixes[prefix] = route
        if len(prefix) not in self._lengths:
            insort(self._lengths, len(prefix), key=neg)
        return True

    def _covering(self, uri: str) -> ResourceRoute | None:
        for length in self._lengths:
            route = self._prefixes.get(uri[:length])
            if route is not None:
                return route
        return None

    def _source(self, route: ResourceRoute) -> Item | Lister | None:
        """Return how *route* is listed, None if it is not."""
        if route.definition is not None:
            return _item(route.pattern, route.definition, route)
        if route.lister is None:
            return None
        return Lister(
            key=route.pattern,
            ttl_ms=route.ttl_ms,
            cache_scope=route.cache_scope,
            visible=route.visible,
            owner=route.hook_name("list"),
            hook=route.lister,
            named=partial(self._named, route),
        )

    def _named(self, route: ResourceRoute, each: Any) -> str | None:
        """Return the URI of *each*, which *route* lists; None if somebody else answers for it."""
        if type(each) is not ResourceDefinition:
            raise route.broken("list", each, "each resource must be a ResourceDefinition")
        return each.uri if self.find(each.uri) in (None, route) else None


def _item(key: str, value: Any, route: ResourceRoute) -> Item:
    return Item(
        key=key,
        ttl_ms=route.ttl_ms,
        cache_scope=route.cache_scope,
        visible=route.visible,
        value=value,
    )
