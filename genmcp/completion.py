"""Completion of the arguments of prompts, and of the variables of resource templates.

2026-07-28, server/utilities, "Completion". A provider completes with a hook,

    async def complete(self, argument, value, context, channel):
        return [city for city in cities if city.startswith(value)]

where *argument* is the name of the argument, *value* its text so far, and *context* the values of
other arguments. It returns texts, the likeliest first; or a `Completion`, with the total number; or
None for the fixed values of the argument.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.errors import ContractError, InvalidParams, PromptNotFound
from genmcp.hook import Hook
from genmcp.protocol.completion import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    PromptReference,
)

__all__ = ["Completer", "complete", "complete_result", "prefix_matches"]

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
