"""The routes of components: they call the hooks of a component and resume a call after its wait."""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from genmcp.channel import Channel, owner_of
from genmcp.completion import Completer
from genmcp.component import ServerComponent, missing_step
from genmcp.core.access import checked_scopes
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.dependencies import injected
from genmcp.errors import ContractError, ToolError
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
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.value import CacheScope, Result
from genmcp.server import Route


class ComponentRoute(Route, frozen=True, kw_only=True):
    """The route of a component: its first hook (`call`, `get` or `read`) and its list entries.

    Attributes:
        owner: the name of the class or function in errors.
        place: the kind and name of the component in errors (`tool 'add'`).
        provider: the component, which has the hooks as methods.
        continues: its `continue_`, or None.
        key: the name or URI that requests find the component by; a prefix of them if `is_prefix`.
        is_prefix: whether the component serves every key that begins with `key`.
        definition: its entry in the list; None for a repository.
        template: its entry in the list of resource templates, or None.
        lister: the `list` hook of a repository, which returns its entries; otherwise None.
        completer: completes its arguments or variables; None if there is nothing to complete.
        ttl_ms: milliseconds for which clients may cache its list entries.
        cache_scope: whether a cache may share these entries between users.
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
        """Return the fields of the route of *provider* that all kinds of components have.

        Raises:
            ConfigurationError: `continue_`, `visible` or a scope is not what it must be.
        """
        return {
            "provider": provider,
            "continues": Hook.of(provider, "continue_", ServerComponent),
            "visible": visibility(provider, ServerComponent),
            "ttl_ms": round(provider.cache_ttl * 1000),
            "cache_scope": provider.cache_scope,
            "scopes": checked_scopes(f"{type(provider).__name__}.scopes", provider.scopes),
        }

    @property
    def pattern(self) -> str:
        """The name, URI or prefix that identifies the component in `Suite.remove`."""
        return self.key

    def key_of(self, definition: Any) -> str:
        """Return the key of *definition*, an entry that the `list` hook of a repository returned.

        Raises:
            ContractError: *definition* does not describe a component of the repository.
        """
        raise NotImplementedError

    def completer_of(self, key: str) -> Completer | None:
        """Return the completer of the component *key*; None if it has no completions."""
        return self.completer

    @abstractmethod
    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Run the first hook for *request*. Return its result, or a wait."""

    @abstractmethod
    async def prepare(self, request: Request, channel: Channel) -> Request:
        """Return a copy of *request* with the arguments that the hooks get.

        They are decoded and validated. For a resource they are the key of its URI.

        Raises:
            McpError: the request is invalid.
        """

    @abstractmethod
    def result_of(self, hook: str, value: Any, request: Request) -> Result:
        """Convert *value*, which *hook* has returned, to the result that is sent.

        Raises:
            ContractError: the hook must not return such a value.
        """

    def first_of(self, request: Request) -> Any:
        """Return the first argument of a method for `then`: *request*, or the key of a resource."""
        return request

    def declined(self, text: str) -> Any:
        """Return the value that ends a call whose question was declined without an `otherwise`.

        *text* states that the user declined or cancelled the question. The value is converted
        as if the hook had returned it.

        Raises:
            ToolError: the result of the component cannot be a text.
        """
        raise ToolError(text)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call after its wait, and return its result or another wait.

        The arguments are decoded and validated again, unless the first hook ran in this process
        with the same request object.
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
        """Run the first method given to `then`, or its `otherwise` if a question was declined.

        Only the method that runs is looked up: a newer release of the component may lack the other.
        Without an `otherwise`, a declined question is passed to the first method if its parameter
        takes an outcome; otherwise the call ends with the value of `declined`.
        """
        value: Any = None
        declined = ""
        if isinstance(outcome, Done):
            value, declined = answer_of(continuation, outcome.value)
        otherwise = continuation.otherwise if declined else None
        name = otherwise or continuation.tag
        method, parameter = self._method(name)
        if parameter.outcome:
            value = parameter.convert(self.hook_name(name), outcome, owner_of(channel))
        elif isinstance(outcome, Failed):
            outcome.result()  # raises the error of the wait, which ends the call
        elif not declined:
            value = parameter.convert(self.hook_name(name), value, owner_of(channel))
        elif not otherwise:
            return self.declined(declined)
        if not isinstance(method, FunctionStep):
            method = injected(method, Channel)
        hook = Hook(method, inspect.iscoroutinefunction(function_of(method)))
        return await hook(channel, self.first_of(channel.request), value, channel)

    def _method(self, name: str) -> tuple[Callable[..., Any], StepValue]:
        """Return the method *name* of the provider, and its parameter for the value of the wait.

        Raises:
            UnknownTag: this release of the provider has no such method.
            ContractError: the method cannot be called with a request, a value and a channel.
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
        """Check that the call can continue after *step*, a wait that *hook* returned; return it.

        Raises:
            ContractError: the provider has no hook, method or step in which the call could
                continue. The awaited work is released.
        """
        # Checked when the wait begins, not when it ends, perhaps days later in another process.
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

    async def prepare_on(self, request: Request, channel: Channel) -> Request:
        """Prepare *request* and return it; set the arguments of the request of *channel*, too.

        Both are the same request, unless a middleware has replaced the name or the arguments. The
        state of the call remains bound to the request of *channel*, which the client has sent.
        """
        # Keep the received params: `requestState` is sealed for the received name and arguments.
        received = channel.request
        begun = await self.prepare(request, channel)
        same = received is request
        channel.request = begun if same else replace(received, arguments=begun.arguments)
        return begun

    async def set_arguments(self, channel: Channel) -> None:
        """Decode the arguments of the request of *channel*, unless that was already done."""
        if channel.request.arguments is None:
            await self.prepare_on(channel.request, channel)

    def hook_name(self, hook: str) -> str:
        """Return the name of a *hook* in errors."""
        return f"{self.owner}.{hook} ({self.place})"

    def broken(self, hook: str, value: Any, why: str) -> ContractError:
        """Return the error for a *value* that *hook* must not return; *why* is the reason."""
        return ContractError(f"{self.hook_name(hook)} returned {type(value).__name__}: {why}")
