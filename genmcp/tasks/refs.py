"""Who waits for a job that somebody else owns, and what became of it if that came first."""

from collections.abc import Sequence
from typing import Final

import msgspec

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Ref
from genmcp.errors import Cancelled, Conflict, ContractError
from genmcp.stores.store import Put, Store
from genmcp.tasks.foreign import Snapshot
from genmcp.tasks.outcomes import done, raised

__all__ = ["Refs", "outcome_of"]

_KEPT: Final = 86400.0  # seconds that an outcome waits for whoever is to follow the job


class ForeignFailure(Exception):
    """What is told of a job that failed elsewhere; its text is for the log."""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """The tasks that wait for a job, and how it ended."""

    tasks: tuple[str, ...] = ()
    outcome: bytes | None = None


class Refs:
    """The jobs of others that tasks wait for, in *store*; keys begin with *prefix*."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix}ref:"

    async def enter(self, ref: Ref, id: str) -> None:
        """Note that the task *id* is about to wait for a job."""
        while True:
            waiting, version = await self._read(ref)
            tasks = tuple(dict.fromkeys((*waiting.tasks, id)))
            if await self._write(ref, Waiting(tasks, waiting.outcome), version):
                return

    async def settle(self, ref: Ref, outcome: bytes) -> Sequence[str]:
        """Keep how a job ended, and return the tasks that wait for it. The first outcome counts."""
        while True:
            waiting, version = await self._read(ref)
            if waiting.outcome is not None:
                return waiting.tasks
            if await self._write(ref, Waiting(waiting.tasks, outcome), version):
                return waiting.tasks

    async def outcome(self, ref: Ref) -> bytes | None:
        """Return how a job ended, None if nobody has said."""
        waiting, _ = await self._read(ref)
        return waiting.outcome

    async def touch(self, ref: Ref) -> None:
        """Go on waiting."""
        await self._store.touch(self._key(ref), _KEPT)

    async def _read(self, ref: Ref) -> tuple[Waiting, int]:
        entry = await self._store.get(self._key(ref))
        return (_decode(entry.value), entry.version) if entry else (Waiting(), 0)

    async def _write(self, ref: Ref, waiting: Waiting, version: int) -> bool:
        put = Put(self._key(ref), _encode(waiting), ttl=_KEPT, expect=version)
        try:
            await self._store.apply(put)
        except Conflict:
            return False
        return True

    def _key(self, ref: Ref) -> str:
        return f"{self._prefix}{ref.scheme}:{ref.ref}"


def outcome_of(ref: Ref, snapshot: Snapshot) -> bytes:
    """Return what a continuation is told of a job that is over."""
    work = f"{ref.scheme} job {ref.ref!r}"
    try:
        if snapshot.phase == "completed":
            return done(work, snapshot.result)
        if snapshot.phase == "cancelled":
            return pack(Failed(Cancelled()))
        raise ForeignFailure(snapshot.error)
    except (ContractError, ForeignFailure) as error:
        return raised(work, error)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Waiting).decode
