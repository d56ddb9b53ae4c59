"""Prompts as classes, repositories of prompts, and their routes.

    class Review(Prompt[ReviewArguments]):
        \"\"\"Asks for a review of some code.\"\"\"

        name = "review"

        async def get(self, request: PromptRequest[ReviewArguments], channel: Channel) -> str:
            return f"Review this {request.arguments.language} code:\\n{request.arguments.code}"

A `def get` or `def complete` runs in a pool of threads, so that it may block.

A prompt that has to wait, or to ask its client first, returns a wait. The wait names the method in
which the prompt continues: `elicit("Which city?", City).then(self.planned)`.

`genmcp.content` lists the values that a prompt may return.

The protocol passes arguments as texts (2026-07-28, server/prompts): see `text_arguments`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic

from msgspec.structs import replace
from typing_extensions import TypeVar

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.component import (
    DescribedComponent,
    ServerComponent,
    attributes_of,
    check_metadata,
    class_attributes,
    definition_of,
    instance_attributes,
    type_argument,
)
from genmcp.component_route import ComponentRoute
from genmcp.content import prompt_result
from genmcp.core.request import PromptRequest, Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, PromptNotFound
from genmcp.hook import Hook
from genmcp.protocol.prompts import GetPromptResult, PromptArgument, PromptDefinition
from genmcp.protocol.value import CacheScope
from genmcp.text_arguments import TextArguments, text_arguments

A = TypeVar("A", default=dict[str, str])


class Prompt(DescribedComponent, Generic[A]):
    """Messages that a person chooses to send. Subclass it, set `name`, and write `get`.

    Set the attributes in the class, on an instance, or as properties.

    Attributes:
        name: the name of the prompt; any text. Required.
        title: a name for people, as in `prompts/list`. Default None.
        description: as in `prompts/list`. Default: the docstring of the class.
        icons: as in `prompts/list`. Default: no icons.
        meta: the `_meta` of the prompt in `prompts/list`. Default None.
        arguments: a list of `PromptArgument`, the values of which are passed as a dict of texts; or
            a type (struct, dataclass, TypedDict, pydantic model) with a field for each argument;
            `Prompt[T]` sets it to T. Default None: no arguments.
        completions: the possible values of arguments, by name. An argument that is an enum, a
            Literal or a bool needs no entry. Default {}.
        cache_ttl: seconds for which a client may cache the list of prompts. Default 0.
        cache_scope: "public" if a cache may share it, else "private". Default "public".
        scopes: the scopes of an access token that a use needs, see `ServerComponent`.

    Raises:
        ConfigurationError: an attribute is invalid, or the name or `get` is missing. Raised when
            the class is defined, or when the prompt is registered.
    """

    __genmcp_hook__ = "get"

    name: str
    description: str | None = None
    arguments: Sequence[PromptArgument] | type | None = None
    completions: Mapping[str, Sequence[str]] = {}
    cache_scope: CacheScope = "public"

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the arguments to the type in `Prompt[...]`, and check the attributes."""
        argument = type_argument(cls, Prompt, str)
        if argument is not None:
            if cls.__dict__.get("arguments", argument) is not argument:
                raise ConfigurationError(
                    f"{cls.__name__}: its arguments are described twice, by Prompt[...] and by "
                    f"arguments; leave one of them out"
                )
            cls.arguments = argument
        super().__init_subclass__(**options)
        _checked(cls.__name__, class_attributes(cls, _ATTRIBUTES))

    def get(self, request: PromptRequest[A], channel: Channel) -> Any:
        """Return the messages, or a `Continue`. `genmcp.content` lists values for messages.

        Raises:
            InvalidParams: the arguments are not those of the prompt.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        """Return completions of *value* for the *argument*.

        *context* has the values of other arguments. The hook returns texts, the likeliest first; or
        a `Completion`; or None for the values in `completions` and of enums, Literals and bools.
        """
        return None


class PromptRepo(ServerComponent):
    """All prompts with one prefix of their names. Subclass it, and write `list` and `get`.

        class Library(PromptRepo):
            prefix = "library/"

            async def list(self, cursor, channel):
                rows = await database.prompts(after=cursor, limit=50)
                return [PromptDefinition(f"library/{row.name}") for row in rows], rows.last

            async def get(self, name, arguments, channel):
                return await database.text(name.removeprefix(self.prefix), **arguments)

    Each hook may be a `def`, which runs in a thread, or an `async def`.

    Attributes:
        prefix: the prefix of the names; "" covers every name. Required.
        cache_ttl: seconds for which a client may cache a page of the list. Default 0.
        cache_scope: "public" if a cache may share it, else "private". See `ServerComponent`.
        scopes: the scopes of an access token that all prompts need. See `ServerComponent`.

    Raises:
        ConfigurationError: an attribute is invalid or missing. Raised at registration.
    """

    __genmcp_hook__ = "get"

    prefix: str

    def list(self, cursor: Any, channel: Channel) -> Any:
        """Return one page: a list of `PromptDefinition`, or a list and the cursor of the next page.

        *cursor* is the JSON value that was returned with the previous page; it is absent (None) for
        the first page. A page without a cursor is the last. A page may have any size.
        """
        raise NotImplementedError

    def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        """Return the messages of the prompt *name*, as `Prompt.get` does, or None if it is unknown.

        Raises:
            InvalidParams: the arguments are not those of the prompt.
        """
        raise NotImplementedError

    def complete(
        self, name: str, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        """Return completions of an *argument* of the prompt *name*, as `Prompt.complete` does."""
        return None


class PromptRoute(ComponentRoute, frozen=True, kw_only=True):
    """The route of a prompt; or of a repository, which has None for *arguments*."""

    get: Hook
    arguments: TextArguments | None = None

    @classmethod
    def of(cls, prompt: Prompt[Any] | PromptRepo) -> "PromptRoute":
        """Return the route of a prompt, or of a repository of them.

        Raises:
            ConfigurationError: an attribute is invalid or missing.
        """
        if isinstance(prompt, PromptRepo):
            return _of_repo(prompt)
        owner, values = instance_attributes(prompt, _ATTRIBUTES)
        arguments = _checked(owner, values)
        names = [argument.name for argument in arguments.listed]
        if unknown := [name for name in prompt.completions if name not in names]:
            raise ConfigurationError(f"{owner}.completions: there is no argument {unknown[0]!r}")
        get = Hook.of(prompt, "get", Prompt)
        if get is None:
            raise ConfigurationError(f"{owner} has no get")
        return cls(
            owner=owner,
            place=f"prompt {prompt.name!r}",
            key=prompt.name,
            definition=definition_of(
                PromptDefinition, owner, values, arguments=arguments.listed or None
            ),
            arguments=arguments,
            get=get,
            completer=Completer(
                owner=f"prompt {prompt.name}",
                names=names,
                hook=Hook.of(prompt, "complete", Prompt),
                options={**arguments.options, **prompt.completions},
            ),
            **cls.members_of(prompt),
        )

    async def handle(self, request: Request, channel: Channel) -> GetPromptResult | Continue:
        """Run `get` for the arguments of *request*, and return the messages or a wait."""
        request = await self.prepare_on(request, channel)
        value = await self.get(channel, *self.inputs(request), channel)
        if type(value) is Continue:
            return self.waiting("get", value)
        return self.result_of("get", value, request)

    def inputs(self, request: Request) -> tuple[Any, ...]:
        """Return the arguments of `get` before the channel."""
        return (request,)

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return a copy of *request* with decoded arguments."""
        assert self.arguments is not None
        given = request.params.arguments or {}  # type: ignore[attr-defined]
        rejected = f"Invalid arguments for prompt {self.key}"
        return replace(request, arguments=self.arguments.read(given, rejected, name=self.key))

    def result_of(self, hook: str, value: Any, request: Request) -> GetPromptResult:
        """Convert *value*, which *hook* has returned, to the result of the prompt."""
        description = None if self.definition is None else self.definition.description
        try:
            return prompt_result(value, description)
        except ContractError as error:
            name: str = request.params.name  # type: ignore[attr-defined]
            raise ContractError(
                f"{self.owner}.{hook} (prompt {name!r}) returned {error}"
            ) from error


class PromptRepoRoute(PromptRoute, frozen=True, kw_only=True):
    """The route of a repository of prompts."""

    def inputs(self, request: Request) -> tuple[Any, ...]:
        """Return the name of the prompt and its arguments."""
        return request.params.name, request.arguments  # type: ignore[attr-defined]

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return a copy of *request* with its arguments as a dict of texts."""
        arguments = request.params.arguments or {}  # type: ignore[attr-defined]
        return replace(request, arguments=dict(arguments))

    def result_of(self, hook: str, value: Any, request: Request) -> GetPromptResult:
        """Convert *value*; None, which `get` returned, is an unknown prompt."""
        if value is None and hook == "get":
            raise PromptNotFound(request.params.name)  # type: ignore[attr-defined]
        return super().result_of(hook, value, request)

    def key_of(self, definition: Any) -> str:
        """Return the name in *definition*, which the `list` hook of the repository returned."""
        if isinstance(definition, PromptDefinition) and definition.name.startswith(self.key):
            return definition.name
        raise ContractError(
            f"{self.hook_name('list')} returned {definition!r} in its list: each prompt must be a "
            f"PromptDefinition whose name begins with {self.key!r}"
        )

    def completer_of(self, key: str) -> Completer:
        """Return the completer of the arguments of the prompt *key* of the repository."""
        # The first argument of a repository's hook is the name of the prompt.
        hook = self.completer.hook if self.completer else None
        if hook is not None:
            hook = Hook(partial(hook.function, key), hook.is_async)
        return Completer(owner=f"prompt {key}", hook=hook)


def _of_repo(repo: PromptRepo) -> PromptRoute:
    owner = type(repo).__name__
    prefix = getattr(repo, "prefix", None)
    if not isinstance(prefix, str):
        raise ConfigurationError(f"{owner}.prefix must be a text, not {prefix!r}")
    check_metadata(owner, {key: getattr(repo, key) for key in _REPO_ATTRIBUTES})
    list_, get = (Hook.of(repo, name, PromptRepo) for name in ("list", "get"))
    if list_ is None or get is None:
        raise ConfigurationError(f"{owner} has no {'list' if list_ is None else 'get'}")
    complete = Hook.of(repo, "complete", PromptRepo)
    return PromptRepoRoute(
        owner=owner,
        place=f"prompts {prefix}*",
        key=prefix,
        is_prefix=True,
        lister=list_,
        get=get,
        completer=Completer(owner=f"prompts {prefix}*", hook=complete),
        **PromptRoute.members_of(repo),
    )


_ATTRIBUTES = attributes_of(Prompt)
_REPO_ATTRIBUTES = ("cache_ttl", "cache_scope", "scopes")


def _checked(owner: str, values: Mapping[str, Any]) -> TextArguments:
    check_metadata(owner, values)
    completions = values.get("completions", {})
    if not isinstance(completions, Mapping) or not all(map(_is_texts, completions.values())):
        raise ConfigurationError(f"{owner}.completions must be lists of texts by argument")
    try:
        return text_arguments(values.get("arguments"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _is_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
