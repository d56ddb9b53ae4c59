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
from genmcp.continuing import ContinuingRoute, check_goes_on, goes_on
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, PromptNotFound
from genmcp.hook import Hook, visibility
from genmcp.metadata import check_metadata, milliseconds
from genmcp.prompt.messages import prompt_result
from genmcp.protocol.prompts import GetPromptResult, PromptDefinition
from genmcp.protocol.result import CacheScope
from genmcp.tool import Call

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

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that a `get` that may wait is gone on from."""
        super().__init_subclass__(**options)
        check_goes_on(f"{cls.__name__}.get", cls.get, goes_on=goes_on(cls, PromptRepo))

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

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        """Go on with a request that waited under *tag*, as `Prompt.continue_` does.

        The name is `channel.request.params.name`.

        Raises:
            PromptNotFound: there is no such prompt; None does not say so here.
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


class RepoRoute(ContinuingRoute, frozen=True, kw_only=True):
    """A repository made ready once."""

    provider: PromptRepo
    get: Hook

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
        return cls(
            owner=owner,
            place=f"prompts {prefix}*",
            provider=repo,
            key=prefix,
            is_prefix=True,
            ttl_ms=milliseconds(repo.cache_ttl),
            cache_scope=repo.cache_scope,
            lister=list_,
            get=get,
            completer=Completer(
                owner=f"prompts {prefix}*", hook=Hook.of(repo, "complete", PromptRepo)
            ),
            continues=Hook.of(repo, "continue_", PromptRepo),
            visible=visibility(repo, PromptRepo),
        )

    async def handle(self, request: Request, channel: Channel) -> GetPromptResult | Continue:
        """Return the messages of the prompt that *request* names."""
        name: str = request.params.name  # type: ignore[attr-defined]
        arguments = self.seen(request, channel)
        value = await self.get(channel, name, arguments, channel)
        if value is None:
            raise PromptNotFound(name)
        if type(value) is Continue:
            return self.waiting("get", value, arguments, channel)
        return self.result_of("get", value, request)

    def seen(self, request: Request, channel: Channel) -> dict[str, str]:
        """Return the arguments of *request*, which are texts."""
        return dict(request.params.arguments or {})  # type: ignore[attr-defined]

    def first_of(self, request: Request) -> Call[Any]:
        """Return the call of the prompt, with its arguments."""
        return Call(request.arguments, request)

    def result_of(self, hook: str, value: Any, request: Request) -> GetPromptResult:
        """Return the messages that *value* stands for."""
        try:
            return prompt_result(value)
        except ContractError as error:
            name: str = request.params.name  # type: ignore[attr-defined]
            raise ContractError(f"{self.owner}.{hook}({name!r}) returned {error}") from error

    def key_of(self, definition: Any) -> str:
        """Return the name of a prompt that the repository lists."""
        if isinstance(definition, PromptDefinition) and definition.name.startswith(self.key):
            return definition.name
        raise ContractError(
            f"{self.hook_name('list')} returned {definition!r} in its list: each prompt must be a "
            f"PromptDefinition whose name begins with {self.key!r}"
        )

    def completer_of(self, key: str) -> Completer:
        """Return the completer of the prompt *key*."""
        hook = self.completer.hook if self.completer else None
        if hook is not None:
            hook = Hook(partial(hook.function, key), hook.is_async)
        return Completer(owner=f"prompt {key}", hook=hook)
