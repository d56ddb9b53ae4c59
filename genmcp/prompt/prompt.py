"""A prompt as a class, and as what a request finds.

    class Review(Prompt[ReviewArguments]):
        \"\"\"Asks for a review of some code.\"\"\"

        name = "review"

        async def get(self, request: Call[ReviewArguments], channel: Channel) -> str:
            return f"Review this {request.arguments.language} code:\\n{request.arguments.code}"

A `def get` runs in a pool of threads, so that it may block; `complete` likewise.

One that has to wait, or to ask its client first, returns that, and names the method in which it
continues: `elicit("Which city?", City).then(self.planned)`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.continuing import ContinuingRoute, check_goes_on, goes_on
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ArgumentFaults, ConfigurationError, ContractError, InvalidParams
from genmcp.faults import error_data
from genmcp.hook import Hook, visibility
from genmcp.metadata import (
    as_listed,
    check_metadata,
    milliseconds,
    said_by,
    take_docstring,
    type_argument,
)
from genmcp.prompt.arguments import PromptArguments, prompt_arguments
from genmcp.prompt.messages import prompt_result
from genmcp.protocol.implementation import Icon
from genmcp.protocol.prompts import GetPromptResult, PromptArgument, PromptDefinition
from genmcp.protocol.result import CacheScope
from genmcp.tool import Call

__all__ = ["Prompt", "PromptRoute"]

A = TypeVar("A", default=dict[str, str])


class Prompt(Generic[A]):
    """A prompt. Subclass it, name it, and write `get`.

    What it says of itself is attributes: of the class, of an instance, or properties.

    name: what it is got by; any text.
    title, description, icons, meta: what its listing says of it; the class's docstring is its
        description unless it gives one.
    arguments: a list of `PromptArgument`, whose values arrive as a dict of texts; or a type
        (struct, dataclass, TypedDict, pydantic model): `Prompt[T]` is short for it. Its fields
        are listed, and a text that came for a number, a boolean, a list or an object is read as
        one. None lists no arguments.
    completions: the values of some arguments, for completion. Those of an argument that is an
        enum, a Literal or a bool are known without.
    cache_ttl, cache_scope: for how many seconds a client may keep the list it is in, and whether
        for others too (2026-07-28, server/utilities, "Caching").

    Raises:
        ConfigurationError: when the class is made, if one of these is wrong; when it is
            registered, if it is wrong only then, or if the name or `get` is missing.
    """

    name: str
    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None
    arguments: Sequence[PromptArgument] | type | None = None
    completions: Mapping[str, Sequence[str]] = {}
    cache_ttl: float = 0
    cache_scope: CacheScope = "public"

    def __init_subclass__(cls, **options: Any) -> None:
        """Check what the class says of itself, and take in what it says by other means."""
        super().__init_subclass__(**options)
        argument = type_argument(cls, Prompt, str)
        if argument is not None:
            if cls.__dict__.get("arguments", argument) is not argument:
                raise ConfigurationError(
                    f"{cls.__name__}: its arguments are described twice, by Prompt[...] and by "
                    f"arguments; leave one of them out"
                )
            cls.arguments = argument
        take_docstring(cls)
        _checked(cls.__name__, said_by(cls, _SAID))
        check_goes_on(f"{cls.__name__}.get", cls.get, goes_on=goes_on(cls, Prompt))

    def get(self, request: Call[A], channel: Channel) -> Any:
        """Return the messages: whatever `genmcp.prompt.messages` knows; or a `Continue`.

        Raises:
            InvalidParams: the arguments are not what the prompt takes.
        """
        raise NotImplementedError

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        """Go on with a prompt that waited under *tag*, and return what `get` may return.

        *outcome* is `Done(value)` or `Failed(error)`. It may run in another process than `get`:
        what it needs is in `channel.request.arguments` and in `channel.assigns`.
        """
        raise NotImplementedError

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        """Return how the *argument*, typed as far as *value*, may go on.

        *context* has the arguments that are chosen already. Return texts, the likeliest first, a
        `Completion`, or None for what the prompt knows by `completions` and its types.
        """
        return None

    def visible(self, principal: str | None) -> bool:
        """Whether there is such a prompt for *principal*; None is whoever is not authenticated.

        It is asked when the prompt is listed, got or completed, and does not wait.
        """
        return True


class PromptRoute(ContinuingRoute, frozen=True, kw_only=True):
    """A prompt made ready once, so that getting it costs only what its arguments need."""

    provider: Prompt[Any]
    definition: PromptDefinition
    arguments: PromptArguments
    get: Hook

    @classmethod
    def of(cls, prompt: Prompt[Any]) -> "PromptRoute":
        """Return the route of *prompt*.

        Raises:
            ConfigurationError: what the prompt says of itself is wrong.
        """
        owner = getattr(prompt, "__name__", type(prompt).__name__)
        said = {key: getattr(prompt, key, None) for key in _SAID}
        if said["name"] is None:
            raise ConfigurationError(f"{owner} has no name")
        arguments = _checked(owner, said)
        names = [argument.name for argument in arguments.listed]
        if unknown := [name for name in prompt.completions if name not in names]:
            raise ConfigurationError(f"{owner}.completions: there is no argument {unknown[0]!r}")
        get = Hook.of(prompt, "get", Prompt)
        if get is None:
            raise ConfigurationError(f"{owner} has no get")
        return cls(
            owner=owner,
            place=f"prompt {prompt.name!r}",
            provider=prompt,
            key=prompt.name,
            ttl_ms=milliseconds(prompt.cache_ttl),
            cache_scope=prompt.cache_scope,
            definition=_definition(owner, prompt, arguments),
            arguments=arguments,
            get=get,
            continues=Hook.of(prompt, "continue_", Prompt),
            visible=visibility(prompt, Prompt),
            completer=Completer(
                owner=f"prompt {prompt.name}",
                names=names,
                hook=Hook.of(prompt, "complete", Prompt),
                options={**arguments.options, **prompt.completions},
            ),
        )

    async def handle(self, request: Request, channel: Channel) -> GetPromptResult | Continue:
        """Return the messages of the prompt for the arguments of *request*."""
        arguments = self.seen(request, channel)
        value = await self.get(channel, Call(arguments, request), channel)
        if type(value) is Continue:
            return self.waiting("get", value, arguments, channel)
        return self.result_of("get", value, request)

    def seen(self, request: Request, channel: Channel) -> Any:
        """Return the arguments of *request*, read as the prompt takes them."""
        name = self.key
        try:
            return self.arguments.decode(request.params.arguments or {})  # type: ignore[attr-defined]
        except ArgumentFaults as error:
            lines = [f"Invalid arguments for prompt {name}:", *(f"- {x}" for x in error.faults)]
            raise InvalidParams("\n".join(lines), error_data(error.faults, name=name)) from None

    def first_of(self, request: Request) -> Call[Any]:
        """Return the call of the prompt, with its arguments."""
        return Call(request.arguments, request)

    def result_of(self, hook: str, value: Any, request: Request) -> GetPromptResult:
        """Return the messages that *value* stands for."""
        try:
            return prompt_result(value)
        except ContractError as error:
            raise ContractError(f"{self.hook_name(hook)} returned {error}") from error


_SAID = tuple(Prompt.__annotations__)


def _checked(owner: str, said: Mapping[str, Any]) -> PromptArguments:
    check_metadata(owner, said)
    completions = said.get("completions", {})
    if not isinstance(completions, Mapping) or not all(map(_is_texts, completions.values())):
        raise ConfigurationError(f"{owner}.completions must be lists of texts by argument")
    try:
        return prompt_arguments(said.get("arguments"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _is_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _definition(owner: str, prompt: Prompt[Any], arguments: PromptArguments) -> PromptDefinition:
    definition = PromptDefinition(
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=arguments.listed or None,
        icons=prompt.icons,
        meta=prompt.meta,
    )
    return as_listed(owner, definition)
