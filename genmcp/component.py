"""Components: the base of tools, prompts and resources, and of their routes."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.continuing import (
    FunctionStep,
    HasSteps,
    StepValue,
    UnknownTag,
    answer_of,
    function_of,
    hint_of,
    is_step,
    step_value,
)
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError, ToolError
from genmcp.hook import Hook, visibility
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.value import CacheScope, Result
from genmcp.server import Route

__all__ = [
    "ComponentRoute",
    "DescribedComponent",
    "ServerComponent",
    "can_continue",
    "check_continues",
]


class ServerComponent:
    """The base of tools, prompts, resources and their repositories.

    cache_ttl, cache_scope: how many seconds clients may cache what they list or read of it, and
    whether the cache may be shared (2026-07-28, server/utilities, "Caching").
    """

    cache_ttl: float = 0
    cache_scope: CacheScope = "private"

    # The name of the hook that serves a request: each kind of component sets it in its class. Its
    # name cannot be that of an attribute of a user's class.
    __genmcp_hook__ = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that a call can continue if the first hook is annotated to return Continue."""
        super().__init_subclass__(**options)
        hook = cls.__genmcp_hook__
        check_continues(f"{cls.__name__}.{hook}", getattr(cls, hook, None), cls)

    def continue_(self, tag: str, outcome: Outcome, channel: Channel[Any]) -> Any:
        """Continue a request that waited under *tag*, and return what the first hook may return.

        It is the general form of `then`. It may run in another process than the first hook: the
        arguments, or the key of a resource, are in `channel.request.arguments`, the name or URI is
        in `channel.request.params`, and what a hook has set is in `channel.assigns`.

        Args:
            tag: the tag of the `Continue`.
            outcome: `Done(value)` or `Failed(error)`.

        Raises:
            ToolError: the work of a tool failed in a way the model should read.
            PromptNotFound, ResourceNotFound: there is no such component; None is an error here.
        """
        raise NotImplementedError

    def visible(self, principal: str | None) -> bool:
        """Return whether it exists for *principal*, None being an unauthenticated client.

        It is called when the component is listed, requested or completed, and must not block.
        """
        return True


def can_continue(provider: ServerComponent | type[ServerComponent]) -> bool:
    """Return whether a call of *provider* can continue after a wait.

    It needs `continue_`, a step of a function, or a method for `then` that is not a hook.
    """
    if function_of(provider.continue_) is not ServerComponent.continue_:
        return True
    if isinstance(provider, HasSteps):
        return bool(provider.function_steps)
    cls = provider if isinstance(provider, type) else type(provider)
    kind = next(base for base in cls.__mro__ if "__genmcp_hook__" in vars(base))
    own = {key: each for base in cls.__mro__ for key, each in vars(base).items()}
    return any(is_step(each) for key, each in own.items() if not hasattr(kind, key))


def check_continues(
    owner: str, hook: Any, provider: ServerComponent | type[ServerComponent]
) -> None:
    """Check that a call can continue after a *hook* that is annotated to return Continue.

    If the annotation is unreadable, the check is left to the first call that returns a Continue.

    Raises:
        ConfigurationError: it cannot.
    """
    if _names_continue(hint_of(inspect.unwrap(hook), "return")) and not can_continue(provider):
        raise ConfigurationError(
            f"{owner} is annotated to return Continue, but {_missing(owner, provider)}"
        )


def _missing(owner: str, provider: ServerComponent | type[ServerComponent]) -> str:
    """Return the part of an error that names the hook or step *provider* lacks, and the remedy."""
    if isinstance(provider, HasSteps):
        return (
            f"it has no step in which to continue: decorate a function with @{owner}.step and pass "
            f"it to .then() of the wait"
        )
    return "it has no continue_: write one, or pass a method to .then() of the wait"


def _names_continue(hint: Any) -> bool:
    return hint is Continue or any(map(_names_continue, get_args(hint)))


class DescribedComponent(ServerComponent):
    """A component with metadata. The docstring of a class is its description by default."""

    title: str | None = None
    description: str | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the docstring as the description, unless the class sets one."""
        described = inspect.cleandoc(cls.__doc__ or "")
        if described and "description" not in cls.__dict__:
            cls.description = described
        super().__init_subclass__(**options)


class ComponentRoute(Route, frozen=True, kw_only=True):
    """The route of a component whose first hook, `call`, `get` or `read`, may return Continue.

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

    @staticmethod
    def members_of(provider: ServerComponent) -> dict[str, Any]:
        """Return the members that the routes of all kinds of components have in common.

        Raises:
            ConfigurationError: `continue_` yields, or `visible` is not a `def`.
        """
        return {
            "provider": provider,
            "continues": Hook.of(provider, "continue_", ServerComponent),
            "visible": visibility(provider, ServerComponent),
            "ttl_ms": round(provider.cache_ttl * 1000),
            "cache_scope": provider.cache_scope,
        }

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
    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return *request* with its arguments, decoded and validated, or the key of a resource.

        Raises:
            McpError: the request is invalid.
        """

    @abstractmethod
    def result_of(self, hook: str, value: Any, request: Request) -> Result:
        """Return the result for *value*, which a *hook* has returned.

        Raises:
            ContractError: the hook must not return such a value.
        """

    def first_of(self, request: Request) -> Any:
        """Return the first argument of a method for `then`."""
        return request

    def declined(self, text: str) -> Any:
        """Return the value for a question that was declined or cancelled, as *text* states.

        Raises:
            ToolError: such a text would be no result.
        """
        raise ToolError(text)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call that has waited.

        Its arguments are decoded and validated again unless the first hook ran with this request.
        """
        await self.set_arguments(channel)
        if continuation.method:
            hook = continuation.tag
            value = await self._in_method(continuation, outcome, channel)
        else:
            hook = "continue_"
            value = await self._in_continue(continuation, outcome, channel)
        if type(value) is Continue:
            return self.waiting(hook, value)
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
            value, declined = answer_of(continuation, outcome.value)
        otherwise = continuation.otherwise if declined else None
        name = otherwise or continuation.tag
        method, parameter = self._method(name)
        if parameter.outcome:
            value = outcome
        elif isinstance(outcome, Failed):
            outcome.result()
        elif not declined:
            value = parameter.convert(self.hook_name(name), value)
        elif not otherwise:
            return self.declined(declined)
        hook = Hook(method, inspect.iscoroutinefunction(function_of(method)))
        return await hook(channel, self.first_of(channel.request), value, channel)

    def _method(self, name: str) -> tuple[Callable[..., Any], StepValue]:
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
            return method, method.value
        function = function_of(method)
        parameter = step_value(function, 1 + (function is not method))
        if isinstance(parameter, str):
            raise ContractError(
                f"{self.hook_name(name)} must take (request, value, channel): {parameter}"
            )
        return method, parameter

    def waiting(self, hook: str, step: Continue) -> Continue:
        """Return *step*, which *hook* has returned, if the call can continue after it.

        Raises:
            ContractError: the provider has no hook, method or step in which it can. The awaited
                work is released.
        """
        try:
            if step.method is not None:
                self._check_method(hook, step.method)
                if step.otherwise is not None:
                    self._check_method(hook, step.otherwise)
            elif self.continues is None:
                raise self.broken(hook, step, _missing(self.owner, self.provider))
        except ContractError:
            step.close()
            raise
        return step

    def _check_method(self, hook: str, given: Callable[..., Any]) -> None:
        try:
            method, _ = self._method(given.__name__)
        except UnknownTag:
            method = None
        if function_of(method) is function_of(given):
            return
        what, remedy = "method", f"pass self.{given.__name__}"
        if isinstance(self.provider, HasSteps):
            what, remedy = "step", f"decorate it with @{self.owner}.step"
        elif given.__name__.startswith("__") and not given.__name__.endswith("__"):
            remedy = "Python changes names that begin with two underscores, so use one or none"
        raise ContractError(
            f"{self.hook_name(hook)}: then({given.__qualname__}) must be given a {what} of "
            f"{self.owner}, which any process finds by its name: {remedy}"
        )

    async def begin(self, request: Request, channel: Channel) -> Request:
        """Return *request* with its arguments, which the request of *channel* gets too.

        They are the same request, unless a server on the way has replaced the name or arguments:
        the state of the call stays bound to the request that the client has sent.
        """
        received = channel.request
        begun = await self.prepare(request, channel)
        same = received is request
        channel.request = begun if same else replace(received, arguments=begun.arguments)
        return begun

    async def set_arguments(self, channel: Channel) -> None:
        """Set the arguments of the request of *channel* to those of the first hook, once."""
        if channel.request.arguments is None:
            await self.begin(channel.request, channel)

    def hook_name(self, hook: str) -> str:
        """Return the name of a *hook* in errors."""
        return f"{self.owner}.{hook} ({self.place})"

    def broken(self, hook: str, value: Any, why: str) -> ContractError:
        """Return the error for a *value* that *hook* must not return, and *why*."""
        return ContractError(f"{self.hook_name(hook)} returned {type(value).__name__}: {why}")
