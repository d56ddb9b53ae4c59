"""The routes of components: how their hooks are called, resumed after a wait, and completed.

2026-07-28, server/utilities, "Completion". A component completes its arguments with a hook,

    async def complete(self, argument, value, context, channel):
        return [city for city in cities if city.startswith(value)]

where *argument* is the name of the argument, *value* its text so far, and *context* the values of
other arguments. It returns texts, the likeliest first; or a `Completion`, with the total number; or
None for the fixed values of the argument.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Done, Failed, Outcome
from genmcp._core.request import Request
from genmcp._core.waiting import Continue
from genmcp.channel import Channel
from genmcp.component import ServerComponent, missing_step
from genmcp.errors import ContractError, InvalidParams, PromptNotFound, ToolError
from genmcp.hook import (
    FunctionStep,
    HasSteps,
    Hook,
    StepValue,
    UnknownTag,
    answer_of,
    function_of,
    step_value,
    visibility,
)
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    PromptReference,
)
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.value import CacheScope, Result
from genmcp.server import Route

#: 2026-07-28, "Completion Results".
MOST_VALUES: Final = 100


class Completer(msgspec.Struct, frozen=True, kw_only=True):
    """Completes the arguments of one prompt, or the variables of one resource template.

    owner: its name in errors. names: the arguments; None if only the hook knows them. hook: the
    `complete` of the provider, or None. options: fixed values by argument, for which the hook
    returns None.
    """

    owner: str
    names: Collection[str] | None = None
    hook: Hook | None = None
    options: Mapping[str, Sequence[str]] = {}

    async def complete(self, params: CompleteRequestParams, channel: Channel) -> CompleteResult:
        """Return the completions of the argument of *params*.

        Raises:
            InvalidParams: the argument does not exist.
            ContractError: the hook did not return texts.
        """
        name, value = params.argument.name, params.argument.value
        if self.names is not None and name not in self.names:
            raise InvalidParams(f"Unknown argument of {self.owner}: {name}", {"argument": name})
        found = None
        if self.hook is not None:
            context = dict(params.context.arguments or {}) if params.context else {}
            found = await self.hook(channel, name, value, context, channel)
        if found is None:
            found = prefix_matches(self.options.get(name, ()), value)
        try:
            return complete_result(found)
        except ContractError as error:
            raise ContractError(f"complete of {self.owner}: {error}") from None


class ComponentRoute(Route, frozen=True, kw_only=True):
    """The route of a component. Its first hook is `call`, `get` or `read`.

    owner: the name of the class or function in errors. place: the component (`tool 'add'`).
    provider: the object that has the hooks as methods. continues: its `continue_`, or None.
    key: the name or URI by which it is found; their prefix if is_prefix.
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
            ToolError: a text cannot be the result.
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
        # None is what a `match` without a case for this tag returns: without the check a call of an
        # older release would end with an empty result.
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
            outcome.result()  # raises the error of the wait, which ends the call
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
        # Checked when the wait begins, so that the author reads the error at once and not when the
        # wait ends, perhaps days later and in another process.
        try:
            if step.method is not None:
                self._check_method(hook, step.method)
                if step.otherwise is not None:
                    self._check_method(hook, step.otherwise)
            elif self.continues is None:
                raise self.broken(hook, step, missing_step(self.owner, self.provider))
        except ContractError:
            step.close()
            raise
        return step

    def _check_method(self, hook: str, given: Callable[..., Any]) -> None:
        try:
            method, _ = self._method(given.__name__)
        except UnknownTag:  # the error below names the remedy
            method = None
        # A continuation stores a name: a method of another object, or a lambda, would be lost.
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
        # 2026-07-28: `requestState` is sealed for the received name and arguments.
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


async def complete(
    request: Request, channel: Channel, completer: Completer | None
) -> CompleteResult:
    """Answer a `completion/complete` by the *completer* of the prompt or template it refers to.

    Raises:
        InvalidParams: the prompt, template or argument does not exist.
    """
    params = request.params
    assert isinstance(params, CompleteRequestParams)
    if completer is not None:
        return await completer.complete(params, channel)
    if isinstance(params.ref, PromptReference):
        raise PromptNotFound(params.ref.name)
    raise InvalidParams(f"Unknown resource template: {params.ref.uri}", {"uri": params.ref.uri})


def complete_result(found: Any) -> CompleteResult:
    """Return the result for *found*, which a hook has returned: at most 100 values.

    Raises:
        ContractError: it is not a list of texts, a Completion or a CompleteResult of them.
    """
    if isinstance(found, CompleteResult):
        return CompleteResult(completion=_bounded(found.completion), meta=found.meta)
    if not isinstance(found, Completion):
        found = Completion(found, None, None)
    return CompleteResult(completion=_bounded(found))


def prefix_matches(options: Iterable[str], value: str) -> list[str]:
    """Return the *options* that begin with *value*, in their order; case is ignored."""
    typed = value.casefold()
    return [option for option in options if option.casefold().startswith(typed)]


def _bounded(given: Completion) -> Completion:
    values = given.values
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise ContractError("return a list of texts, a Completion, or None")
    more = len(values) > MOST_VALUES
    if given.has_more is None and given.total is not None:
        more = given.total > len(values) or more
    return Completion(
        values=values[:MOST_VALUES],
        total=len(values) if given.total is None and not given.has_more else given.total,
        has_more=given.has_more or more,
    )
