"""How the waits of calls end: questions by their answers, awaitables in this process."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, TypeAlias
from weakref import ref

import msgspec

from genmcp._core.call import AskClient, ClientAnswered
from genmcp._core.continuation import AskedQuestion, Continuation
from genmcp._core.outcome import Done, Failed, Outcome
from genmcp._mux.performing import report
from genmcp.cancellation import cancel_and_wait, cancel_requested
from genmcp.channel import Channel
from genmcp.errors import (
    ArgumentFaults,
    CapabilityMissing,
    ContractError,
    MissingCapability,
    WaitError,
    WorkerLost,
    WorkRaised,
)
from genmcp.protocol.client_features import InputRequest, ListRootsRequestParams
from genmcp.question.packing import unpack
from genmcp.tasks.attempt import wait_error_of

_decode = msgspec.json.Decoder().decode


def pending_requests(continuation: Continuation) -> dict[str, InputRequest]:
    """Return the unanswered questions, by their keys in the protocol message."""
    return {each.name: unpack(each.question).request for each in continuation.missing}


def missing_capability(continuation: Continuation, channel: Channel) -> Failed | None:
    """Return the outcome of questions that the client does not support; None if it supports all."""
    lacking: dict[str, Any] = {}
    for each in continuation.missing:
        for name, parts in (
            unpack(each.question).missing_capabilities(channel.client.capabilities).items()
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
                unpack(each.question).read(answer)
            except ArgumentFaults:
                continue
            good[each.key] = msgspec.json.encode(answer)
    return continuation.answered(good)


def answers_outcome(continuation: Continuation) -> Outcome:
    """Return the outcome of questions, all of which are answered."""
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
    question = unpack(asked.question)
    params = question.request.params or ListRootsRequestParams()
    try:
        return asked.key, await channel.context.sink.ask(channel.request, question.method, params)
    except MissingCapability as error:
        raise CapabilityMissing(error.data["requiredCapabilities"]) from error


_WORK = "what a call waited for"

AnyFuture: TypeAlias = asyncio.Future[Any] | futures.Future[Any]


class Awaitables:
    """The awaitables that calls of one mux wait for in this process. Owned by `Continuations`."""

    def __init__(self) -> None:
        self._pending: dict[int, _FutureWait] = {}

    async def outcome(self, on: Any) -> Outcome:
        """Wait for *on*, a coroutine, Task or future, and return its outcome.

        A coroutine runs here, and is cancelled with the call. If the last reference to a future is
        dropped, nothing can end the future any more: the outcome is then WorkerLost.

        Raises:
            ContractError: another call waits for the same object.
            asyncio.CancelledError: the call is cancelled.
        """
        if isinstance(on, asyncio.Future | futures.Future):
            wait = self._wait_for(on)
            key = id(on)
            del on  # only the creator of the future may hold a reference: see `_FutureWait`
            try:
                return await wait.outcome
            finally:
                wait.forget()
                if self._pending.get(key) is wait:
                    del self._pending[key]
        try:
            return Done(await on)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                raise
            return Failed(wait_error_of(_WORK, error))

    def _wait_for(self, on: AnyFuture) -> "_FutureWait":
        known = self._pending.get(id(on))
        # The entry of a dropped future stays until its call continues. Meanwhile another future may
        # get the same address, and thereby the same id.
        if known is not None and known.is_for(on):
            raise ContractError("two calls wait for one future: each needs one of its own")
        if isinstance(on, asyncio.Future) and on.get_loop() is not asyncio.get_running_loop():
            raise ContractError("the call waits for a future of another event loop")
        wait = self._pending[id(on)] = _FutureWait(on)
        return wait


class _FutureWait:
    """The wait of a call for a future; *outcome* is set when the future is done.

    Only a weak reference to the future is held. If its creator drops the last reference, the future
    can never end: the callback of the weak reference then fails the wait with WorkerLost, where a
    strong reference would let the call wait for ever.
    """

    __slots__ = ("_future", "_kept", "outcome")

    def __init__(self, on: AnyFuture) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._future = ref(on, self._dropped)
        # An event loop references its tasks weakly: without this reference, a task could be garbage
        # collected while it runs. Unlike a future, a task ends without its creator.
        self._kept = on if isinstance(on, asyncio.Task) else None
        on.add_done_callback(self._ended)

    def is_for(self, on: AnyFuture) -> bool:
        return self._future() is on

    def forget(self) -> None:
        self._kept = None
        future = self._future()
        if isinstance(future, asyncio.Future):
            future.remove_done_callback(self._ended)

    def _ended(self, future: Any) -> None:
        self._soon(_outcome_of, future)

    def _dropped(self, _: object) -> None:
        self._soon(Failed, WorkerLost())

    def _soon(self, outcome: Callable[[Any], Outcome], of: Any) -> None:
        loop = self.outcome.get_loop()
        if not loop.is_closed():  # a future of concurrent.futures ends in any thread
            loop.call_soon_threadsafe(self._settle, outcome, of)

    def _settle(self, outcome: Callable[[Any], Outcome], of: Any) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome(of))


def _outcome_of(future: Any) -> Outcome:
    try:
        return Done(future.result())
    except BaseException as error:  # the error of the future, not of this function
        return Failed(wait_error_of(_WORK, error))
