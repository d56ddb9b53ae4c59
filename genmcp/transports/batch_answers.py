"""The responses of a batch: how many of its requests run at once, and the size of the whole."""

import asyncio
from collections.abc import Iterable, Sequence

from genmcp.core.request import Request
from genmcp.core.server import Action, Reject, ServerConnection, Start
from genmcp.errors import InvalidRequest, Overloaded, TooLarge
from genmcp.mux.mux import Answer, Mux, error_of
from genmcp.transports.request import HttpRequest
from genmcp.transports.responder import Responder, finish_at_once
from genmcp.transports.running_call import NO_ANSWER
from genmcp.transports.stream import OpenResponse
from genmcp.wire.jsonrpc import Message

__all__ = ["BatchAnswers", "receive_batch", "serve_batch"]


def receive_batch(
    connection: ServerConnection, batch: Iterable[Message | InvalidRequest]
) -> tuple[list[Request], list[Reject], list[Action]]:
    """Return the requests of *batch*, the members that get an error response, and other actions.

    Raises:
        InvalidRequest: the client may not send batches.
    """
    connection.check_batch()
    requests: list[Request] = []
    rejects: list[Reject] = []
    others: list[Action] = []
    for member in batch:
        try:
            action = connection.receive_member(member)
        except Exception as error:  # a defect of the server costs one member
            assert isinstance(member, Message)
            action = Reject(error_of(error), True, member.request_id, member.method)
        match action:
            case Start(request=request):
                requests.append(request)
            case Reject(answered=True):
                rejects.append(action)
            case Reject():
                pass  # without a response, it must not affect the other members
            case _:
                others.append(action)
    return requests, rejects, others


async def serve_batch(
    visit: HttpRequest, requests: Sequence[Request], refused: Sequence[bytes]
) -> None:
    """Answer *requests*, each hook in an asyncio.Task of its own; *refused* are answered."""
    response = OpenResponse(visit, requests, len(requests) + len(refused))
    answers = BatchAnswers(visit.mux, refused)
    calls = [Responder(visit, request, response=response) for request in requests]
    left = dict.fromkeys(calls)
    members: set[asyncio.Task[None]] = set()

    async def answer_member(call: Responder) -> None:
        call.respond(await answers.answer(call, response))
        del left[call]

    try:
        for message in refused:
            response.writer.refuse(message)
        # Nothing is started for a request before its turn: a client may send many batches whose
        # first requests wait, and an asyncio.Task for each of the others would dominate memory use.
        for call in calls:
            await answers.turns.acquire()
            members.add(asyncio.create_task(answer_member(call)))
        for ended in await asyncio.gather(*members, return_exceptions=True):
            # A hook that has cancelled itself does not cancel the others.
            if isinstance(ended, Exception):
                raise ended
        for call in left:
            call.respond(call.cancelled_answer())
        await response.finish()
    except asyncio.CancelledError:
        for call in left:
            call.respond(call.cancelled_answer())
        await finish_at_once(response)
        raise
    finally:
        for member in members:
            member.cancel()
        try:
            await asyncio.gather(*members, return_exceptions=True)
        finally:  # a host may cancel again and again
            promotions = [each for call in calls for each in call.promotions()]
            await response.end(promotions)


class BatchAnswers:
    """The limits on the requests and answers of one batch. Owned by the response to the batch.

    refused: the errors of members that are not valid requests; they count towards `Limits.result`.
    turns: the semaphore (`Limits.batch_concurrency`) that each running request holds.
    """

    def __init__(self, mux: Mux, refused: Iterable[bytes] = ()) -> None:
        self.turns = asyncio.Semaphore(mux.limits.batch_concurrency)
        self._mux = mux
        self._left = mux.limits.result - sum(map(len, refused))

    async def answer(self, call: Responder, response: OpenResponse) -> Answer:
        """Start *call*, which holds a turn; return its answer, and release the turn.

        It is not started if the *response* or the session has ended, if the server is shutting
        down, or if there is no room for its answer.
        """
        request, ended = call.request, self._mux.broadcast
        try:
            if call.closed or request.session in ended:
                return NO_ANSWER
            if response.stopping:
                return self._mux.respond(request, Overloaded("The server is shutting down"))
            if self.full:  # not started, so the client can retry it
                return self._mux.respond(request, self.overflow())
            begun = call.begin()
            answer = begun if isinstance(begun, Answer) else await call.outcome(begun)
            await asyncio.sleep(0)  # let requests of other clients run between two members
            return self.bounded(request, answer)
        finally:
            self.turns.release()

    @property
    def full(self) -> bool:
        """Whether the response has reached `Limits.result`."""
        return self._left <= 0

    def overflow(self) -> TooLarge:
        """Return the error for a request whose answer does not fit."""
        most = self._mux.limits.result
        return TooLarge(f"The answers of this batch are larger than {most} bytes (limit: result)")

    def bounded(self, request: Request, answer: Answer) -> Answer:
        """Return *answer*, or an error if it does not fit; after that nothing fits any more."""
        size = len(answer.message or b"")
        if size > self._left:
            self._left = 0
            return self._mux.respond(request, self.overflow())
        self._left -= size
        return answer
