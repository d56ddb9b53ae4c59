"""Questions of a call and their answers, on whichever carrier they travel."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.core.call import CallEvent
from genmcp.core.continuation import Asked, Continuation
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.errors import (
    ArgumentFaults,
    CapabilityMissing,
    MissingCapability,
    WaitError,
    WorkRaised,
)
from genmcp.protocol.client_features import InputRequest, ListRootsRequestParams
from genmcp.question.packing import unpack

__all__ = ["ask", "outcome_of", "requests_of", "taken", "unable"]

_decode = msgspec.json.Decoder().decode


def requests_of(continuation: Continuation) -> dict[str, InputRequest]:
    """Return what the client has not answered yet, by its names on the wire."""
    return {each.name: unpack(each.question).request for each in continuation.missing}


def unable(continuation: Continuation, channel: Channel) -> Failed | None:
    """Return the outcome of questions that the client of *channel* cannot be asked; else None."""
    lacking: dict[str, Any] = {}
    for each in continuation.missing:
        for name, parts in unpack(each.question).lacking(channel.client.capabilities).items():
            lacking[name] = {**lacking.get(name, {}), **parts}
    return Failed(CapabilityMissing(lacking)) if lacking else None


def taken(continuation: Continuation, responses: Mapping[str, Any]) -> Continuation:
    """Return *continuation* with those of the *responses*, by names, that answer it.

    What answers nothing is ignored, and what is no answer is to be asked again (2026-07-28,
    basic/patterns, MRTR, "Error Handling").
    """
    good: dict[str, bytes] = {}
    for each in continuation.missing:
        if each.name in responses:
            answer = responses[each.name]
            try:
                unpack(each.question).read(answer)
            except ArgumentFaults:
                continue
            good[each.key] = msgspec.json.encode(answer)
    return continuation.answered(good)


def outcome_of(continuation: Continuation) -> Outcome:
    """Return what the answers, which are all there, mean to the tool."""
    values: dict[str, Any] = {}
    for each in continuation.asked:
        try:
            values[each.key] = unpack(each.question).read(_decode(continuation.answers[each.key]))
        except ArgumentFaults as error:
            return Failed(WorkRaised(secrets.token_hex(6), type(error).__name__, str(error)))
    if continuation.alone:
        (value,) = values.values()
        return Done(value)
    return Done(values)


async def ask(continuation: Continuation, channel: Channel) -> Continuation | Failed:
    """Ask the client by requests of the server's own; return the answers, or why there are none."""
    asking = [asyncio.ensure_future(_ask(each, channel)) for each in continuation.missing]
    channel.call.advance(CallEvent.ASK)
    try:
        answers = await asyncio.gather(*asking)
    except WaitError as failure:
        return Failed(failure)
    finally:
        channel.call.advance(CallEvent.ANSWERED)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return continuation.answered(dict(answers))


async def _ask(asked: Asked, channel: Channel) -> tuple[str, bytes]:
    question = unpack(asked.question)
    params = question.request.params or ListRootsRequestParams()
    try:
        return asked.key, await channel.sink.ask(channel.request, question.method, params)
    except MissingCapability as error:
        raise CapabilityMissing(error.data["requiredCapabilities"]) from error
