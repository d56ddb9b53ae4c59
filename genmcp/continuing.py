"""How a call goes on in `continue_`, alike for tools, prompts and resources."""

import inspect
from abc import abstractmethod
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from msgspec.structs import force_setattr

from genmcp.channel import Channel
from genmcp.continuation import Continue
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import Hook
from genmcp.protocol.result import Result
from genmcp.server import Route

__all__ = ["ContinuingRoute", "UnknownTag", "check_goes_on"]


class UnknownTag(ContractError):
    """`continue_` returned None: none of its cases handles the tag and outcome."""


class ContinuingRoute(Route, frozen=True, kw_only=True):
    """The route of something whose first hook, `call`, `get` or `read`, may return Continue.

    owner: what errors call whoever wrote the hooks. place: what they are for (`tool 'add'`).
    continues: its `continue_`, None if it has none.
    """

    owner: str
    place: str
    continues: Hook | None

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

    def waiting(self, hook: str, step: Continue, request: Request, seen: Any) -> Continue:
        """Return *step*, by which the first *hook* has answered *request*.

        *seen* is what the hook saw of it, which `continue_` finds in `channel.request.arguments`.

        Raises:
            ContractError: nobody would go on.
        """
        if self.continues is None:
            step.close()
            raise self.broken(hook, step, "there is no continue_ that would go on")
        force_setattr(request, "arguments", seen)
        return step

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on with a call that has waited.

        Its arguments are looked at again where the request is not the one the first hook has seen.
        """
        if self.continues is None:
            raise ContractError(f"{self.owner} has no continue_ ({self.place})")
        await self.look_at(channel)
        value = await self.continues(channel, continuation.tag, outcome, channel)
        if type(value) is Continue:
            return value
        if value is None:
            raise UnknownTag(
                f"{self.hook_name('continue_')} returned NoneType: nothing was said for tag "
                f"{continuation.tag!r} and {type(outcome).__name__}; an empty result is []"
            )
        return self.result_of("continue_", value, channel.request)

    async def look_at(self, channel: Channel) -> None:
        """Let the request of *channel* have what the first hook sees of it, unless it has that."""
        request = channel.request
        if request.arguments is None:
            seen = self.seen(request, channel)
            seen = await seen if inspect.isawaitable(seen) else seen
            force_setattr(request, "arguments", seen)

    def hook_name(self, hook: str) -> str:
        """Return what errors call a *hook* of it."""
        return f"{self.owner}.{hook} ({self.place})"

    def broken(self, hook: str, value: Any, why: str) -> ContractError:
        """Return the error that says that *hook* must not return *value*, and *why*."""
        return ContractError(f"{self.hook_name(hook)} returned {type(value).__name__}: {why}")


def check_goes_on(owner: str, hook: Any, *, goes_on: bool) -> None:
    """Check that something *goes on* after a *hook* that is annotated to return Continue.

    An annotation that cannot be read says nothing; then the first call tells.

    Raises:
        ConfigurationError: nothing does.
    """
    if not goes_on and _names_continue(_returned(hook)):
        raise ConfigurationError(
            f"{owner} is annotated to return Continue, and there is no continue_ that would go on: "
            f"write one, in the same class"
        )


def _returned(hook: Any) -> Any:
    """Return the type that *hook* says it returns, None if that is not known."""
    function = inspect.unwrap(hook)
    try:
        # What it takes is left alone: those names may be there only for a type checker.
        told = SimpleNamespace(__annotations__={"return": function.__annotations__["return"]})
        return get_type_hints(told, getattr(function, "__globals__", {}))["return"]
    except (AttributeError, KeyError, NameError, SyntaxError, TypeError):
        return None


def _names_continue(hint: Any) -> bool:
    return hint is Continue or any(map(_names_continue, get_args(hint)))
