"""The record of a call that continues later: all that its next hook needs.

The record has the same form in all three places: in the memory of this process, if the call waits
for an awaitable; sealed into the `requestState` that a client sends back; in a store, for a job.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace


class AskedQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question of a call: its *key* in the tool, its *name* on the wire, and its packed form."""

    key: str
    name: str
    question: bytes


# Packed as an array, since a `requestState` travels twice with each question. A member that is
# added gets a default and comes last: states that older releases have sealed stay valid, and
# processes of both releases can resume each other's calls.


class Continuation(msgspec.Struct, frozen=True, array_like=True):
    """The state of a call that waits.

    id: random, and the same for the life of the call. step: the number of the wait, counted from 1;
    after those of an earlier call whose idempotency key is free again.
    key: the tool, prompt or URI that the request names. tag, assigns: those of the tool. asked,
    answers: the questions to the client, and its answers so far, as JSON by their names.
    alone: whether there is one question; then the tool gets its answer without a key. names: every
    name that a question of this call has had on the wire, where each MUST be unique (2026-07-28,
    basic/patterns, MRTR, "Server Requirements"; SEP-2663, "Task Update Requests"). task: the stored
    task that the call waits for, if any; last_event: the latest event of it that the client has
    received. release: the version of the server that wrote this step. key_id: the secret that
    sealed the first state of the call; every process that can open a state of it derives the same
    ids. method: whether the call continues in the method *tag*, and not in `continue_`; otherwise:
    the method for a declined question, "" for none.
    """

    id: str
    step: int
    key: str
    tag: str
    assigns: Mapping[str, Any]
    asked: tuple[AskedQuestion, ...] = ()
    answers: Mapping[str, bytes] = {}
    alone: bool = False
    names: tuple[str, ...] = ()
    task: str | None = None
    last_event: str | None = None
    release: str = ""
    key_id: str = ""
    method: bool = False
    otherwise: str = ""

    def then(self, tag: str, assigns: Mapping[str, Any], release: str = "") -> "Continuation":
        """Return the next step of the same call."""
        return replace(
            self,
            step=self.step + 1,
            tag=tag,
            assigns=assigns,
            asked=(),
            answers={},
            task=None,
            release=release,
            method=False,
            otherwise="",
        )

    def asking(self, questions: Mapping[str, bytes], *, alone: bool) -> "Continuation":
        """Return this step with *questions* to the client, by the tool's own keys.

        On the wire a question is called by its key, or `{key}.{step}` if another had that name.
        """
        # A client may still answer an earlier question of the same key, or send an old state again.
        # With one name per question such an answer is never taken for that to a later one.
        used = set(self.names)
        asked = []
        for key, question in questions.items():
            name = next(name for name in _names(key, self.step) if name not in used)
            used.add(name)
            asked.append(AskedQuestion(key, name, question))
        names = (*self.names, *(each.name for each in asked))
        return replace(self, asked=tuple(asked), alone=alone, names=names)

    def answered(self, answers: Mapping[str, bytes]) -> "Continuation":
        """Return this step with more *answers*, by their names on the wire."""
        return replace(self, answers={**self.answers, **answers})

    @property
    def missing(self) -> Sequence[AskedQuestion]:
        """The questions that have no answer yet."""
        return [each for each in self.asked if each.name not in self.answers]

    def pack(self) -> bytes:
        """Return the bytes to seal or store."""
        return _encoder.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "Continuation":
        """Return the continuation that `pack` has packed.

        Raises:
            msgspec.MsgspecError: it was packed by a release with another format.
        """
        return _decoder.decode(packed)


def _names(key: str, step: int) -> Iterator[str]:
    yield key
    yield f"{key}.{step}"
    while True:
        step += 1
        yield f"{key}.{step}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Continuation)
