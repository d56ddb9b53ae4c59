"""Prompts as classes, repositories of prompts, and their routes.

    class Review(Prompt[ReviewArguments]):
        \"\"\"Asks for a review of some code.\"\"\"

        name = "review"

        async def get(self, request: PromptRequest[ReviewArguments], channel: Channel) -> str:
            return f"Review this {request.arguments.language} code:\\n{request.arguments.code}"

A `def get` or `def complete` runs in a pool of threads, so that it may block.

A prompt that has to wait, or to ask its client first, returns a wait, and names the method in which
it continues: `elicit("Which city?", City).then(self.planned)`.

| a prompt returns | messages |
|---|---|
| str, content, `Image`, `Audio`, `(bytes, mime type)` | one, of the user |
| `user(...)`, `assistant(...)`, a PromptMessage | as it is |
| a list of these | one after another |
| `GetPromptResult` | as it is |
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic

from msgspec.structs import replace
from typing_extensions import TypeVar

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.component import ComponentRoute, DescribedComponent, ServerComponent
from genmcp.content import CONTENT, result
from genmcp.core.request import PromptRequest, Request
from genmcp.core.waiting import Continue
from genmcp.errors import (
    ArgumentFaults,
    ConfigurationError,
    ContractError,
    InvalidParams,
    PromptNotFound,
)
from genmcp.faults import error_data
from genmcp.hook import Hook
from genmcp.metadata import (
    attributes_of,
    check_metadata,
    class_attributes,
    definition_of,
    instance_attributes,
    type_argument,
)
from genmcp.prompt.arguments import PromptArguments, prompt_arguments
from genmcp.protocol.content import Role
from genmcp.protocol.prompts import (
    GetPromptResult,
    PromptArgument,
    PromptDefinition,
    PromptMessage,
)
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import CacheScope

__all__ = ["Prompt", "PromptRepo", "PromptRoute", "assistant", "prompt_result", "user"]

A = TypeVar("A", default=dict[str, str])


def user(content: Any) -> PromptMessage:
    """Return a message of the user: a text, or other content.

    Raises:
        ContractError: it is not content, or is more than one.
    """
    return _message(content, "user")


def assistant(content: Any) -> PromptMessage:
    """Return a message of the model: a text, or other content.

    Raises:
        ContractError: it is not content, or is more than one.
    """
    return _message(content, "assistant")


def prompt_result(value: Any) -> GetPromptResult:
    """Return the result for *value*, which a prompt has returned.

    Raises:
        ContractError: a prompt must not return such a value.
    """
    if isinstance(value, GetPromptResult):
        return value
    is_list = isinstance(value, list | tuple) and not (value and isinstance(value[0], bytes))
    parts = value if is_list else [value]
    return GetPromptResult(
        messages=[part if isinstance(part, PromptMessage) else user(part) for part in parts]
    )


def _message(content: Any, role: Role) -> PromptMessage:
    if not isinstance(content, (str, tuple, *CONTENT)) or isinstance(content, CallToolResult):
        raise ContractError(
            f"{type(content).__name__} is no message: return a text, content, user(...) or "
            f"assistant(...), or a list of these"
        )
    blocks = result(content).content
    if len(blocks) != 1:
        raise ContractError(f"a message has one content, not {len(blocks)}")
    return PromptMessage(role, blocks[0])


class Prompt(DescribedComponent, Generic[A]):
    """A prompt. Subclass it, name it, and write `get`.

    It is configured by attributes of the class or of an instance, or by properties.

    name: the name of the prompt; any text.
    title, description, icons, meta: as in `prompts/list`; the default of description is the
        docstring of the class.
    arguments: a list of `PromptArgument`, whose values are passed as a dict of texts; or a type
        (struct, dataclass, TypedDict, pydantic model): `Prompt[T]` is short for it. Its fields are
        listed, and the text for a number, a boolean, a list or an object is parsed. None lists no
        arguments.
    completions: the possible values of arguments, by name. Those of an argument that is an enum, a
        Literal or a bool need not be given.
    cache_ttl, cache_scope: seconds for which a client may cache the list of prompts, and whether
        the cache may be shared (2026-07-28, server/utilities, "Caching").

    Raises:
        ConfigurationError: an attribute is invalid. Raised when the class is defined if possible,
            otherwise, or if the name or `get` is missing, when the prompt is registered.
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
        """Return the messages, as the table of this module lists them; or a `Continue`.

        Raises:
            InvalidParams: the arguments are not those of the prompt.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        """Return completions of *value* for the *argument*.

        *context* has the values of other arguments. Return texts, the likeliest first, a
        `Completion`, or None for those that follow from `completions` and the types.
        """
        return None


class PromptRepo(ServerComponent):
    """All prompts whose names begin with *prefix*. Subclass it, and write `list` and `get`.

        class Library(PromptRepo):
            prefix = "library/"

            async def list(self, cursor, channel):
                rows = await database.prompts(after=cursor, limit=50)
                return [PromptDefinition(f"library/{row.name}") for row in rows], rows.last

            async def get(self, name, arguments, channel):
                return await database.text(name.removeprefix(self.prefix), **arguments)

    prefix: what their names begin with; the empty text is for all names that no component before
        it has.
    cache_ttl, cache_scope: for how many seconds a client may cache a page of them, and whether the
        cache may be shared. Each hook may be `def` (it runs in a thread) or `async def`.

    Raises:
        ConfigurationError: when it is registered, if one of these is invalid or missing.
    """

    __genmcp_hook__ = "get"

    prefix: str

    def list(self, cursor: Any, channel: Channel) -> Any:
        """Return a page of `PromptDefinition`s: a list, or a list and the next page's cursor.

        *cursor* is the one that the page before returned, any JSON value; None for the first page.
        Without one the page is the last. Pages may have any size; a client gets pages of its own.
        """
        raise NotImplementedError

    def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        """Return the messages of the prompt *name*, as `Prompt.get` does; None if there is none.

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
    """The route of a prompt. *arguments* is None for those of a repository."""

    get: Hook
    arguments: PromptArguments | None = None

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
        """Return the messages of the prompt for the arguments of *request*."""
        request = await self.begin(request, channel)
        value = await self.get(channel, request, channel)
        if type(value) is Continue:
            return self.waiting("get", value)
        return self.result_of("get", value, request)

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return *request* with its decoded arguments."""
        assert self.arguments is not None
        name = self.key
        try:
            arguments = self.arguments.decode(request.params.arguments or {})  # type: ignore[attr-defined]
        except ArgumentFaults as error:
            lines = [f"Invalid arguments for prompt {name}:", *(f"- {x}" for x in error.faults)]
            raise InvalidParams("\n".join(lines), error_data(error.faults, name=name)) from None
        return replace(request, arguments=arguments)

    def result_of(self, hook: str, value: Any, request: Request) -> GetPromptResult:
        """Return the messages for *value*."""
        try:
            return prompt_result(value)
        except ContractError as error:
            name: str = request.params.name  # type: ignore[attr-defined]
            raise ContractError(
                f"{self.owner}.{hook} (prompt {name!r}) returned {error}"
            ) from error


class PromptRepoRoute(PromptRoute, frozen=True, kw_only=True):
    """The route of a repository of prompts."""

    async def handle(self, request: Request, channel: Channel) -> GetPromptResult | Continue:
        """Return the messages of the prompt that *request* names."""
        name: str = request.params.name  # type: ignore[attr-defined]
        request = await self.begin(request, channel)
        value = await self.get(channel, name, request.arguments, channel)
        if value is None:
            raise PromptNotFound(name)
        if type(value) is Continue:
            return self.waiting("get", value)
        return self.result_of("get", value, request)

    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return *request* with its arguments, which are texts."""
        arguments = request.params.arguments or {}  # type: ignore[attr-defined]
        return replace(request, arguments=dict(arguments))

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


def _of_repo(repo: PromptRepo) -> PromptRoute:
    owner = type(repo).__name__
    prefix = getattr(repo, "prefix", None)
    if not isinstance(prefix, str):
        raise ConfigurationError(f"{owner}.prefix must be a text, not {prefix!r}")
    check_metadata(owner, {"cache_ttl": repo.cache_ttl, "cache_scope": repo.cache_scope})
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


def _checked(owner: str, values: Mapping[str, Any]) -> PromptArguments:
    check_metadata(owner, values)
    completions = values.get("completions", {})
    if not isinstance(completions, Mapping) or not all(map(_is_texts, completions.values())):
        raise ConfigurationError(f"{owner}.completions must be lists of texts by argument")
    try:
        return prompt_arguments(values.get("arguments"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _is_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
