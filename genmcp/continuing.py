"""How a call continues after a wait, in `continue_` or in a method of its component."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, ToolError
from genmcp.hook import Hook
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.result import CacheScope, Result
from genmcp.question.answers import Accepted, Declined, Dismissed
from genmcp.server import Route

__all__ = [
    "ContinuingRoute",
    "FunctionStep",
    "HasSteps",
    "Taken",
    "UnknownTag",
    "check_goes_on",
    "goes_on",
    "hint_of",
]


_SCALARS = frozenset({str, int, float, bool})  # of JSON; a subclass is a Python object


class UnknownTag(ContractError):
    """A call cannot be resumed: `continue_` lacks a case for its tag, or its method is missing."""


class Taken(msgspec.Struct, frozen=True):
    """The parameter of a method that receives the value of a wait.

    outcome: whether it receives the outcome instead. hint: its annotation, None if unreadable.
    """

    outcome: bool
    hint: Any

    @classmethod
    def by(cls, function: Callable[..., Any], place: int) -> "Taken":
        """Return the parameter of *function* at *place*."""
        name = list(inspect.signature(function).parameters)[place]
        hint = hint_of(function, name)
        return cls(name == "outcome" or Failed in get_args(hint), hint)

    def value(self, method: str, found: Any) -> Any:
        """Return *found*, the value of a wait, converted to the annotated type.

        The value of a job is JSON: without this a method that annotates a `date` or an Enum would
        get a `str`. Python objects, which only an awaitable returns, are passed unchanged.

        Raises:
            ContractError: *found* does not match the type.
        """
        hint = self.hint
        container = isinstance(found, dict | list)
        if hint in (None, Any, dict, list) or not (container or type(found) in _SCALARS):
            return found
        validate = getattr(hint, "model_validate", None)  # of a pydantic model
        try:
            # A bool is an int here as in Python; msgspec would reject it.
            if not container and isinstance(hint, type) and isinstance(found, hint):
                return found
            return validate(found) if validate else msgspec.convert(found, hint)
        except (msgspec.ValidationError, ValueError) as error:
            raise ContractError(f"{method} cannot take the value of the wait: {error}") from error
        except TypeError:  # a type that msgspec does not support, or a Protocol
            return found


class FunctionStep(msgspec.Struct, frozen=True, eq=False):
    """A step of a function under `@tool` or `@prompt`, called as a method would be.

    function: takes the value first. names, channels: its parameters that are arguments of the
    decorated function, and those that get the channel. bound: the instance, if it is a method.
    """

    function: Callable[..., Any]
    names: Collection[str]
    channels: Collection[str]
    taken: Taken
    bound: tuple[Any, ...] = ()

    @property
    def __func__(self) -> Callable[..., Any]:
        return self.function

    def __call__(self, request: Any, value: Any, channel: Channel) -> Any:
        """Call the function with the *value*, and with arguments of the *request*."""
        given = {name: getattr(request.arguments, name) for name in self.names}
        given.update(dict.fromkeys(self.channels, channel))
        return self.function(*self.bound, value, **given)


class HasSteps:
    """What is made of a function: a call of it continues in *function_steps*, by their names."""

    function_steps: Mapping[str, FunctionStep] = {}
    bound: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Return a step; asked for what is no attribute."""
        step = self.function_steps.get(name)
        if step is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return replace(step, bound=self.bound)


class ContinuingRoute(Route, frozen=True, kw_only=True):
    """The route of something whose first hook, `call`, `get` or `read`, may return Continue.

    owner: the name of the class or function in errors. place: the component (`tool 'add'`).
    provider: the object whose methods the hooks are. continues: its `continue_`, or None.
    key: the name or URI by which it is found, or what those begin with if it is a prefix.
    definition: the entry in its list; a repository has a *lister* instead. template: its entry in
    the list of resource templates. completer: completes its arguments or variables. ttl_ms,
    cache_scope: how clients may cache its list entries.
    """

    owner: str
    place: str
    provider: Any
    continues: Hook | None
    key: str
    is_prefix: bool = False
    definition: Any = None
    template: ResourceTemplateDefinition | None = None
    lister: Hook | None = None
    completer: Completer | None = None
    ttl_ms: int = 0
    cache_scope: CacheScope = "public"

    @property
    def pattern(self) -> str:
        """The name, URI or prefix by which `Suite.remove` finds it."""
        return self.key

    def key_of(self, definition: Any) -> str:
        """Return the key of a *definition*, returned by the `list` hook of a repository.

        Raises:
            ContractError: it is not a definition of a component of the repository.
        """
        raise NotImplementedError

    def completer_of(self, key: str) -> Completer | None:
        """Return the completer of the component *key*, None if it has no completions."""
        return self.completer

    @abstractmethod
    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Run the first hook for *request*."""

    @abstractmethod
    def seen(self, request: Request, channel: Channel) -> Any:
        """Return what the first hook sees of *request*, or an awaitable of it.

        That is its arguments, as `call` or `get` has them, or the key that `read` gets.

        Raises:
            McpError: it is none that the hook would see.
        """

    @abstractmethod
    def result_of(self, hook: str, value: Any, request: Request) -> Result:
        """Return the result that *value*, which a *hook* has returned, stands for.

        Raises:
            ContractError: the hook must not return such a value.
        """

    def first_of(self, request: Request) -> Any:
        """Return the first argument of a hook for *request*, which was looked at before."""
        return request.arguments

    def declined(self, text: str) -> Any:
        """Return the value for a question that was declined or cancelled, as *text* states.

        Raises:
            ToolError: such a text would be no result.
        """
        raise ToolError(text)

    def waiting(self, hook: str, step: Continue, seen: Any, channel: Channel) -> Continue:
        """Return *step*, which the first *hook* has returned, and store *seen* in the channel.

        *seen* is the argument of the hook: `continue_` reads it as `channel.request.arguments`.

        Raises:
            ContractError: the provider has no hook, method or step in which the call can continue.
        """
        self._check_step(hook, step)
        channel.request = replace(channel.request, arguments=seen)
        return step

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on with a call that has waited.

        Its arguments are looked at again where the request is not the one the first hook has seen.
        """
        await self.look_at(channel)
        if continuation.method:
            hook = continuation.tag
            value = await self._in_method(continuation, outcome, channel)
        else:
            hook = "continue_"
            value = await self._in_continue(continuation, outcome, channel)
        if type(value) is Continue:
            self._check_step(hook, value)
            return value
        return self.result_of(hook, value, channel.request)

    async def _in_continue(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Any:
        if self.continues is None:
            raise ContractError(f"{self.owner} has no continue_ ({self.place})")
        value = await self.continues(channel, continuation.tag, outcome, channel)
        if value is None:
            raise UnknownTag(
                f"{self.hook_name('continue_')} returned None for tag {continuation.tag!r} and "
                f"{type(outcome).__name__}: add a case for them, or return [] for an empty result"
            )
        return value

    async def _in_method(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Any:
        """Run the method given to `then`, or `otherwise` if a question was declined.

        Only the method that runs is looked up: a release may lack the other one. A declined
        question without `otherwise` needs the first method, which may take the outcome.
        """
        value: Any = None
        declined = ""
        if isinstance(outcome, Done):
            value, declined = _answer_of(continuation, outcome.value)
        otherwise = continuation.otherwise if declined else None
        name = otherwise or continuation.tag
        method, taken = self._method(name)
        if taken.outcome:
            value = outcome
        elif isinstance(outcome, Failed):
            outcome.result()
        elif not declined:
            value = taken.value(self.hook_name(name), value)
        elif not otherwise:
            return self.declined(declined)
        hook = Hook(method, inspect.iscoroutinefunction(_function_of(method)))
        return await hook(channel, self.first_of(channel.request), value, channel)

    def _method(self, name: str) -> tuple[Callable[..., Any], Taken]:
        """Return the method *name*, bound to the provider, and its parameter for the value.

        Raises:
            UnknownTag: this release of the provider has no such method.
            ContractError: it cannot be called with a request, a value and a channel.
        """
        method = getattr(self.provider, name, None)
        if not callable(method):
            raise UnknownTag(
                f"{self.owner} has no method {name}, in which this call continues ({self.place}): "
                f"keep the methods of calls that still wait"
            )
        if isinstance(method, FunctionStep):
            return method, method.taken
        function = _function_of(method)
        taken = _taken(function, 1 + (function is not method))
        if isinstance(taken, str):
            raise ContractError(
                f"{self.hook_name(name)} must take (request, value, channel): {taken}"
            )
        return method, taken

    def _check_step(self, hook: str, step: Continue) -> None:
        """Check that the call can continue after *step*, which *hook* has returned.

        Raises:
            ContractError: it cannot. The awaited work is released.
        """
        try:
            if step.method is None:
                if self.continues is None:
                    of_function = isinstance(self.provider, HasSteps)
                    raise self.broken(hook, step, _missing(self.owner, of_function=of_function))
                return
            for given in (step.method, step.otherwise):
                if given is not None:
                    self._check_method(hook, given)
        except ContractError:
            step.close()
            raise

    def _check_method(self, hook: str, given: Callable[..., Any]) -> None:
        try:
            method, _ = self._method(given.__name__)
        except UnknownTag:
            method = None
        if _function_of(method) is not _function_of(given):
            what, remedy = "method", f"pass self.{given.__name__}"
            if isinstance(self.provider, HasSteps):
                what, remedy = "step", f"decorate it with @{self.owner}.step"
            elif given.__name__.startswith("__") and not given.__name__.endswith("__"):
                remedy = "Python changes names that begin with two underscores, so use one or none"
            raise ContractError(
                f"{self.hook_name(hook)}: then({given.__qualname__}) must be given a {what} of "
                f"{self.owner}, which any process finds by its name: {remedy}"
            )

    async def look_at(self, channel: Channel) -> None:
        """Let the request of *channel* have what the first hook sees of it, unless it has that."""
        request = channel.request
        if request.arguments is None:
            seen = self.seen(request, channel)
            seen = await seen if inspect.isawaitable(seen) else seen
            channel.request = replace(request, arguments=seen)

    def hook_name(self, hook: str) -> str:
        """Return what errors call a *hook* of it."""
        return f"{self.owner}.{hook} ({self.place})"

    def broken(self, hook: str, value: Any, why: str) -> ContractError:
        """Return the error that says that *hook* must not return *value*, and *why*."""
        return ContractError(f"{self.hook_name(hook)} returned {type(value).__name__}: {why}")


def _missing(owner: str, *, of_function: bool) -> str:
    """Return the part of an error that names the hook or step *owner* lacks, and the remedy."""
    if of_function:
        return (
            f"it has no step in which to continue: decorate a function with @{owner}.step and pass "
            f"it to .then() of the wait"
        )
    return "it has no continue_: write one, or pass a method to .then() of the wait"


def _answer_of(continuation: Continuation, value: Any) -> tuple[Any, str]:
    """Return the value for a method, and a text if a question was declined or cancelled, or "".

    The value of an accepted answer is its content. If any of several questions was declined, the
    answers are returned as they are.
    """
    if not continuation.asked:
        return value, ""
    answers = {"": value} if continuation.alone else value
    for each in answers.values():
        if isinstance(each, Declined | Dismissed):
            did = "declined" if isinstance(each, Declined) else "cancelled the question"
            return value, f"The user {did}."
    contents = {
        key: each.content if isinstance(each, Accepted) else each for key, each in answers.items()
    }
    return contents[""] if continuation.alone else contents, ""


def _function_of(method: Any) -> Any:
    return getattr(method, "__func__", method)


@lru_cache(maxsize=1024)
def _taken(function: Callable[..., Any], place: int) -> Taken | str:
    """Return the parameter of *function* for the value, at *place*, or why it cannot be called."""
    try:
        inspect.signature(function).bind(*[None] * (place + 2))
    except (TypeError, ValueError) as error:
        return str(error)
    return Taken.by(function, place)


def goes_on(provider: object, kind: type) -> bool:
    """Return whether a call of *provider*, a subclass of *kind* or an instance, can continue.

    It needs `continue_`, a step of a function, or a method for `then`: one that is not a hook, and
    whose third parameter is called `channel` or annotated `Channel`.
    """
    if _function_of(getattr(provider, "continue_", None)) is not getattr(kind, "continue_", None):
        return True
    if isinstance(provider, HasSteps):
        return bool(provider.function_steps)
    cls: type = provider if isinstance(provider, type) else type(provider)
    own = {key: each for base in cls.__mro__ for key, each in vars(base).items()}
    return any(_is_step(each) for key, each in own.items() if not hasattr(kind, key))


def _is_step(method: Any) -> bool:
    if not inspect.isfunction(method):
        return False
    parameters = list(inspect.signature(method).parameters.values())
    return len(parameters) == 4 and (
        parameters[3].name == "channel" or parameters[3].annotation in (Channel, "Channel")
    )


def check_goes_on(
    owner: str,
    hook: Any,
    *,
    goes_on: bool,
    of_function: bool = False,
) -> None:
    """Check that a call can continue after a *hook* that is annotated to return Continue.

    *goes_on*: whether it can. *of_function*: whether *hook* is a function under a decorator. If the
    annotation is unreadable, the check is left to the first call that returns a Continue.

    Raises:
        ConfigurationError: it cannot.
    """
    if not goes_on and _names_continue(hint_of(inspect.unwrap(hook), "return")):
        raise ConfigurationError(
            f"{owner} is annotated to return Continue, but "
            f"{_missing(owner, of_function=of_function)}"
        )


def hint_of(function: Any, name: str) -> Any:
    """Return the annotation *name* of *function*, None if that cannot be read."""
    try:
        # What else is annotated is left alone: those names may be there only for a type checker.
        told = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
        return get_type_hints(told, getattr(function, "__globals__", {}))[name]
    except (AttributeError, KeyError, NameError, SyntaxError, TypeError):
        return None


def _names_continue(hint: Any) -> bool:
    return hint is Continue or any(map(_names_continue, get_args(hint)))
