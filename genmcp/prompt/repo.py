"""Prompts that come from somewhere else: a database, a folder, another service.

class Library(PromptRepo):
    prefix = "library/"

    async def list(self, cursor, channel):
        rows = await database.prompts(after=cursor, limit=50)
        return [PromptDefinition(f"library/{row.name}") for row in rows], rows.last

    async def get(self, name, arguments, channel):
        return await database.text(name.removeprefix(self.prefix), **arguments)
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, ContractError, PromptNotFound
from genmcp.hook import Hook, visibility
from genmcp.metadata import check_metadata
from genmcp.prompt.messages import prompt_result
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.result import CacheScope
from genmcp.server import Route

__all__ = ["PromptRepo", "RepoRoute"]


class PromptRepo:
    """All prompts whose names begin with *prefix*. Subclass it, and write `list` and `get`.

    prefix: what their names begin with; the empty text takes all that nobody before it has.
    cache_ttl, cache_scope: for how many seconds a client may keep a page of them, and whether for
        others too. Each hook may be `def` (it runs in a thread) or `async def`.

    Raises:
        ConfigurationError: when it is registered, if one of these is wrong or missing.
    """

    prefix: str
    cache_ttl: float = 0
    cache_scope: CacheScope = "private"

    def list(self, cursor: Any, channel: Channel) -> Any:
        """Return a page of `PromptDefinition`s: a list, or a list and the next page's cursor.

        *cursor* is what the page before gave, any JSON value; None for the first page. Without
        one the page is the last. Pages may have any size; a client gets what fits one of its own.
        """
        raise NotImplementedError

    def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        """Return the messages of the prompt *name*, as `Prompt.get` does; None if there is none.

        Raises:
            InvalidParams: the arguments are not what the prompt takes.
        """
        raise NotImplementedError

    def complete(
        self, name: str, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        """Return how an *argument* of the prompt *name* may go on, as `Prompt.complete` does."""
        return None

    def visible(self, principal: str | None) -> bool:
        """Whether there are these prompts for *principal*; None is whoever is not authenticated."""
        return True


class RepoRoute(Route, frozen=True, kw_only=True):
    """A repository made ready once."""

    repo: PromptRepo
    prefix: str
    list: Hook
    get: Hook
    complete: Hook | None

    @classmethod
    def of(cls, repo: PromptRepo) -> "RepoRoute":
        """Return the route of *repo*.

        Raises:
            ConfigurationError: what the repository says of itself is wrong.
        """
        owner = type(repo).__name__
        prefix = getattr(repo, "prefix", None)
        if not isinstance(prefix, str):
            raise ConfigurationError(f"{owner}.prefix must be a text, not {prefix!r}")
        check_metadata(owner, {"cache_ttl": repo.cache_ttl, "cache_scope": repo.cache_scope})
        list_, get = (Hook.of(repo, name, PromptRepo) for name in ("list", "get"))
        if list_ is None or get is None:
            raise ConfigurationError(f"{owner} has no {'list' if list_ is None else 'get'}")
        complete = Hook.of(repo, "complete", PromptRepo)
        return cls(
            repo=repo,
            prefix=prefix,
            list=list_,
            get=get,
            complete=complete,
            visible=visibility(repo, PromptRepo),
        )

    async def handle(self, request: Request, channel: Channel) -> GetPromptResult:
        """Return the messages of the prompt that *request* names."""
        params: Any = request.params
        value = await self.get(channel, params.name, dict(params.arguments or {}), channel)
        if value is None:
            raise PromptNotFound(params.name)
        try:
            return prompt_result(value)
        except ContractError as error:
            owner = type(self.repo).__name__
            raise ContractError(f"{owner}.get({params.name!r}) returned {error}") from error

    def completer_of(self, name: str) -> Completer:
        """Return what completes the arguments of the prompt *name*."""
        hook = self.complete
        if hook is not None:
            hook = Hook(partial(hook.function, name), hook.is_async)
        return Completer(owner=f"prompt {name}", hook=hook)
