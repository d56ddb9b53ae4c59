"""Records that several processes change: by compare-and-set, so that no change is lost."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from genmcp.errors import Conflict
from genmcp.stores.store import Delete, Op, Put, Store

T = TypeVar("T")


class SharedRecords(Generic[T]):
    """The records of one type in *store*.

    Args:
        store: has the records.
        kind: the type of their values.
        empty: the value where there is no record.
        ttl: seconds after its last write for which a record is retained. Default: for ever.
    """

    def __init__(self, store: Store, kind: object, empty: T, ttl: float | None = None) -> None:
        self._store = store
        self._empty = empty
        self._ttl = ttl
        self._decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(kind).decode

    async def read(self, key: str) -> tuple[T, int]:
        """Return the value under *key*, and the version of its record; 0 if there is none."""
        entry = await self._store.get(key)
        return (self._empty, 0) if entry is None else (self._decode(entry.value), entry.version)

    async def write(self, key: str, value: T, version: int) -> bool:
        """Replace the record that has this *version*; return False if it has changed.

        A record whose value equals *empty* is deleted.
        """
        op: Op = Delete(key, expect=version)
        if value != self._empty:
            op = Put(key, _encode(value), ttl=self._ttl, expect=version)
        try:
            await self._store.apply(op)
        except Conflict:
            return False
        return True

    async def update(self, key: str, change: Callable[[T], T]) -> T:
        """Replace the value by what *change* returns for it, and return that.

        *change* is called again after a conflict. If its result equals the value, nothing is
        written.
        """
        while True:
            was, version = await self.read(key)
            value = change(was)
            if value == was or await self.write(key, value, version):
                return value


_encode = msgspec.msgpack.Encoder().encode
