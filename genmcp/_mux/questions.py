"""The questions of a call to its client, and the answers.

In 2026-07-28 the response asks, and a retry of the request brings the answers; before, the server
sends requests.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp._mux.performing import report
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Channel
from genmcp.core.call import AskClient, ClientAnswered
from genmcp.core.continuation import AskedQuestion, Continuation
from genmcp.core.outcome import Done, Failed, Outcome, unpack
from genmcp.errors import (
    ArgumentFaults,
    CapabilityMissing,
    MissingCapability,
    WaitError,
    WorkRaised,
)
from genmcp.protocol.client_features import ListRootsRequestParams
from genmcp.question.packing import unpack as unpack_question


def missing_capability(continuation: Continuation, channel: Channel) -> Failed | None:
    """Return the outcome of questions that the client does not support; None if it supports all."""
    lacking: dict[str, Any] = {}
    for each in continuation.missing:
        for name, parts in (
            unpack_question(each.question).missing_capabilities(channel.client.capabilities).items()
        ):
            lacking[name] = {**lacking.get(name, {}), **parts}
    return Failed(CapabilityMissing(lacking)) if lacking else None


def merge_answers(continuation: Continuation, responses: Mapping[str, Any]) -> Continuation:
    """Return *continuation* with the valid answers among *responses*.

    *responses* has the keys of the protocol message. Unknown keys are ignored, and the question of
    an invalid answer is sent again (2026-07-28, basic/patterns,
    MRTR, "Error Handling").
    """
    good: dict[str, bytes] = {}
    for each in continuation.missing:
        if each.name in responses:
            answer = responses[each.name]
            try:
                unpack_question(each.question).read(answer)
            except ArgumentFaults:
                continue
            good[each.name] = msgspec.json.encode(answer)
    return continuation.answered(good)


def answers_outcome(continuation: Continuation) -> Outcome:
    """Return the outcome of questions, all of which are answered."""
    values: dict[str, Any] = {}
    for each in continuation.asked:
        try:
            answer = msgspec.json.decode(continuation.answers[each.name])
            values[each.key] = unpack_question(each.question).read(answer)
        except ArgumentFaults as error:
            return Failed(WorkRaised(secrets.token_hex(6), type(error).__name__, str(error)))
    if continuation.alone:
        (value,) = values.values()
        return Done(value)
    return Done(values)


async def ask_client(continuation: Continuation, channel: Channel) -> Continuation | Failed:
    """Ask the client by requests of the server (legacy); return the answers, or the failure."""
    asking = [asyncio.ensure_future(_ask(each, channel)) for each in continuation.missing]
    await report(channel, AskClient(continuation))
    try:
        answers = await asyncio.gather(*asking)
    except WaitError as failure:
        return Failed(failure)
    finally:
        await report(channel, ClientAnswered())
        await cancel_and_wait(*asking)
    return continuation.answered(dict(answers))


async def _ask(asked: AskedQuestion, channel: Channel) -> tuple[str, bytes]:
    question = unpack_question(asked.question)
    params = question.request.params or ListRootsRequestParams()
    try:
        return asked.name, await channel.context.sink.ask(channel.request, question.method, params)
    except MissingCapability as error:
        raise CapabilityMissing(error.data["requiredCapabilities"]) from error


def read_answers(continuation: Continuation, outcome: Outcome) -> Outcome:
    """Return the outcome of the questions, with the answers decoded from *outcome*.

    *outcome* has the answers by their keys in the protocol message.
    """
    if isinstance(outcome, Failed):
        return outcome
    answers: dict[str, bytes] = {}
    for each in continuation.asked:
        answer = unpack(msgspec.json.encode(outcome.value[each.name]))
        if isinstance(answer, Failed):
            return answer
        answers[each.name] = msgspec.json.encode(answer.value)
    return answers_outcome(continuation.answered(answers))
