"""The prompts of a server: found by name, listed, completed."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from genmcp.completion import Completer
from genmcp.errors import ContractError
from genmcp.listing import Item, Lister, Listing
from genmcp.metadata import instance_of, milliseconds
from genmcp.prompt.function import prompt_of
from genmcp.prompt.prompt import Prompt, PromptRoute
from genmcp.prompt.repo import PromptRepo, RepoRoute
from genmcp.protocol.prompts import ListPromptsResult, PromptDefinition

__all__ = ["Prompts", "prompt_route"]


class Prompts:
    """Routes in the order they were declared; the first that has a name, or a prefix of it, counts.

    A value: to add or remove one, make another; routes can be used again.

    routes: those that answer to something. listing: what is listed of them, each name by who
    answers to it.
    """

    def __init__(self, routes: Sequence[PromptRoute | RepoRoute] = ()) -> None:
        self._prompts: dict[str, PromptRoute] = {}
        self._repos: dict[str, RepoRoute] = {}
        self._lengths: list[int] = []  # of the prefixes, each once, the longest first
        self.routes = tuple(route for route in routes if self._add(route))
        self.listing = Listing([*map(self._source, self.routes)], ListPromptsResult, "prompts")

    def __repr__(self) -> str:
        return f"<Prompts, {len(self.routes)} routes>"

    def __len__(self) -> int:
        return len(self.routes)

    @property
    def completes(self) -> bool:
        """Whether any of them has something to complete: the `completions` capability."""
        completers = [route.completer for route in self._prompts.values()]
        return any(each.hook or each.options for each in completers) or any(
            route.complete for route in self._repos.values()
        )

    def find(self, name: str) -> PromptRoute | RepoRoute | None:
        """Return what answers for the prompt *name*, None if nothing does."""
        found = self._prompts.get(name)
        return self._repo(name) if found is None else found

    def completer(self, name: str, principal: str | None) -> Completer | None:
        """Return what completes the prompt *name* for *principal*, None if there is none."""
        route = self.find(name)
        if route is None or not route.is_visible(principal):
            return None
        return route.completer_of(name) if isinstance(route, RepoRoute) else route.completer

    def _add(self, route: PromptRoute | RepoRoute) -> bool:
        """Take *route* in, unless those before it answer to all its names."""
        if isinstance(route, PromptRoute):
            name = route.definition.name
            if self.find(name) is not None:
                return False
            self._prompts[name] = route
        else:
            if self._repo(route.prefix) is not None:
                return False
            self._repos[route.prefix] = route
            self._lengths = sorted({len(prefix) for prefix in self._repos}, reverse=True)
        return True

    def _source(self, route: PromptRoute | RepoRoute) -> Item | Lister:
        """Return how *route* is listed."""
        if isinstance(route, PromptRoute):
            return Item(
                key=route.definition.name,
                ttl_ms=milliseconds(route.provider.cache_ttl),
                cache_scope=route.provider.cache_scope,
                visible=route.visible,
                value=route.definition,
            )
        return Lister(
            key=route.prefix,
            ttl_ms=milliseconds(route.provider.cache_ttl),
            cache_scope=route.provider.cache_scope,
            visible=route.visible,
            owner=f"{type(route.provider).__name__}.list",
            hook=route.list,
            named=partial(self._named, route),
        )

    def _named(self, route: RepoRoute, each: Any) -> str | None:
        """Return the name of *each*, which *route* lists; None if somebody else answers to it."""
        if not isinstance(each, PromptDefinition) or not each.name.startswith(route.prefix):
            raise ContractError(
                f"{type(route.provider).__name__}.list returned {each!r} in its list: it must be "
                f"PromptDefinitions whose names begin with {route.prefix!r}"
            )
        return each.name if self.find(each.name) is route else None

    def _repo(self, name: str) -> RepoRoute | None:
        # A prefix that one before it covers was not taken in: the longest was given first.
        found = (self._repos.get(name[:length]) for length in self._lengths)
        return next((route for route in found if route is not None), None)


def prompt_route(given: object) -> PromptRoute | RepoRoute:
    """Return the route of a prompt or a repository of them.

    *given* is a `Prompt` or `PromptRepo`, a class of them (made here, without arguments) or a
    function under `@prompt`.

    Raises:
        ConfigurationError: it is none of these, or what it says of itself is wrong.
    """
    repo = instance_of(given, PromptRepo)
    if repo is not None:
        return RepoRoute.of(repo)
    return PromptRoute.of(instance_of(given, Prompt) or prompt_of(given))
