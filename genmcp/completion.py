"""Completion: the possible values of an argument, while the user of a client types.

A client requests the values of an argument of a prompt, or of a variable of a resource template
(2026-07-28, server/utilities, "Completion"). A component suggests them with a hook:

    async def complete(self, argument, value, context, channel):
        return [city for city in cities if city.startswith(value)]

*argument* is the name of the argument, *value* is the text that the user has typed, and *context*
has the values of other arguments. The hook returns a list of texts, the likeliest first; or a
`Completion`, which also states how many values there are in all; or None, upon which those fixed
values of the argument that begin with *value* are suggested.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.errors import ContractError, InvalidParams
from genmcp.hook import Hook
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
)

#: The most values that a completion may return (2026-07-28, "Completion Results").
MOST_VALUES: Final = 100


class Completer(msgspec.Struct, frozen=True, kw_only=True):
    """Completes the arguments of one prompt, or the variables of one resource template.

    Attributes:
        owner: the name of the prompt or template in errors.
        names: the names of the arguments; None if only the hook knows them.
        hook: the `complete` of the component; None if the component does not override it.
        options: fixed values by argument. They are used if the hook is None or returns None.
        scopes: the scopes of the component, which its completions need as well.
    """

    owner: str
    names: Collection[str] | None = None
    hook: Hook | None = None
    options: Mapping[str, Sequence[str]] = {}
    scopes: tuple[str, ...] = ()

    async def complete(self, params: CompleteRequestParams, channel: Channel) -> CompleteResult:
        """Return the completions of the argument of *params*.

        Raises:
            InvalidParams: the argument does not exist.
            InsufficientScope: the client lacks a scope of the component.
            ContractError: the hook did not return texts.
        """
        if self.scopes:
            channel.context.caller.require_scopes(self.scopes)
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


def complete_result(found: Any) -> CompleteResult:
    """Convert *found*, which a `complete` hook returned, to a result of at most 100 values.

    Raises:
        ContractError: *found* is not a list of texts, a Completion or a CompleteResult.
    """
    if isinstance(found, CompleteResult):
        return CompleteResult(completion=_bounded(found.completion), meta=found.meta)
    if not isinstance(found, Completion):
        found = Completion(found, None, None)
    return CompleteResult(completion=_bounded(found))


def prefix_matches(options: Iterable[str], value: str) -> list[str]:
    """Return those *options* that begin with *value*, in their order; case is ignored."""
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
