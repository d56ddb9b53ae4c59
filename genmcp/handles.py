"""State between calls: a value in the store, to which a client refers by an id.

    @tool
    async def start(channel: Channel) -> Handle[Cart]:
        \"\"\"Starts an empty cart.\"\"\"
        return await Handle.new(channel, Cart())

    @tool
    async def add(cart: Handle[Cart], item: str) -> str:
        \"\"\"Puts an item into a cart.\"\"\"
        async with cart as value:
            value.items.append(item)
        return f"{len(value.items)} items"

The id is sealed: only the client for which it was made can use it, and only for that type.

Changes are serialized by a lease in the record of the value. `async with` takes it by
compare-and-set, and waits while another call has it. The value is written once, at the end of the
block, on the condition that the record still has the version that the lease has made: the version
is a fencing token. If a process is killed within the block, its lease ends, and the next call finds
the value as it was before. A block that lasts longer than its lease is written, too, unless another
call has taken the lease over; then its write is refused, and its call fails.

Blocks of two values within each other are two writes, the inner one first. So that the first is not
written without the second, an inner block neither waits nor is written when little is left of the
lease of an outer one: it raises, and the outer one is not written either.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from functools import lru_cache
from math import inf
from pathlib import Path
from random import random
from secrets import token_bytes
from struct import Struct
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from genmcp.binding import BoundValue, GetOwner, Owner, no_owner
from genmcp.cancellation import run_to_completion
from genmcp.channel import Channel, owner_of
from genmcp.core.client_key import ADDRESS
from genmcp.core.seal import Purpose
from genmcp.errors import (
    ConfigurationError,
    Conflict,
    ContractError,
    SealError,
    StoreError,
    ToolError,
)
from genmcp.stores.store import Delete, Put
from genmcp.tasks.jobs import Run
from genmcp.tasks.values import codec_of, to_json

T = TypeVar("T")
V = TypeVar("V")  # type checkers do not infer T for `Handle.new`, without the type

_LEASE: Final = 15.0
"""Seconds after which a value that a killed process was changing can be changed again."""

_MAX_WAIT: Final = 30.0
"""Seconds that a call waits for the changes of others: longer than a lease, so that it survives
the death of another process."""

_PAUSES: Final = (0.01, 0.25)
"""The shortest and the longest pause, in seconds, between two looks at a lease."""

_MAX_BYTES: Final = 65_536
"""The maximum size of a value as JSON. It is read and written whole: larger ones belong into a
database."""

_MAX_OF_CLIENT: Final = 1000
"""The number of values of one type that a client may have. Those that are made at the same moment
may exceed it."""

_MAX_TTL: Final = 10 * 365 * 86400.0

_PAGE: Final = 100  # records that a listing reads at once

_SEALED: Final = Struct(">12sf")
"""What an id contains: the name of a record, and its ttl. A model has to repeat it: it is short."""


class _StoredValue(msgspec.Struct, frozen=True, array_like=True):
    """A value as it is stored: *client* has it under *id*; its lease ends at *leased_until*."""

    id: str
    client: str
    leased_until: float
    value: bytes


_decode = msgspec.msgpack.Decoder(_StoredValue).decode


class _Location(NamedTuple):
    """Where a value is stored, and the seconds without use after which it expires."""

    owner: Owner
    key: str
    ttl: float


class _Change(NamedTuple):
    """A block that changes *value*, at *key*; *version* of *record* has made its lease."""

    handle: "Handle[Any]"
    key: str
    record: _StoredValue
    version: int
    value: Any


_changes: ContextVar[tuple[_Change, ...]] = ContextVar("genmcp_changes", default=())
"""The blocks that the current task is in, and some that have ended."""


_HandleList: TypeAlias = "list[Handle[T]]"  # `list` is a method within the class


class Handle(BoundValue, Generic[T]):
    """A value of the type T, such as a struct, a dataclass or a pydantic model, by its id.

    As the type of an argument of a tool, `cart: Handle[Cart]`, it is the id of a value that the
    client has got from another tool. A call with any other id is rejected before the hook runs. A
    handle that a tool returns is sent as its id.

    Elsewhere, `Handle[Cart](id, channel)` is the handle of an id that was kept as a text; in a job
    it takes the `run`. Its methods check the id.

    `async with handle as cart:` changes the value: the block may change the object `cart`, which is
    written at the end of the block, unless the block raises. Changes of one value, also by other
    processes, happen one after another. Keep the block short: after 15 seconds another call may
    take its place, and the block fails at its end. A block of the same value within the block
    raises ToolError.

    All methods raise ToolError if the value does not exist (any more), or belongs to another
    client, and StoreError if the store fails.

    Args:
        id: the id, a text.
        within: the channel of the call, or the run of the job, whose client has the value.

    Attributes:
        id: the id.
    """

    _type: ClassVar[Any] = None
    _title: ClassVar[str] = ""
    _name: ClassVar[str] = ""

    def __init__(self, id: str, within: Channel[Any] | Run[Any] | None = None) -> None:
        super().__init__(id, no_owner if within is None else _owner_of(within))
        self._change: _Change | None = None

    def __class_getitem__(cls, kind: Any) -> Any:
        """Return the class of handles of values of the type *kind*."""
        if isinstance(kind, TypeVar):  # in a generic class of the application
            return super().__class_getitem__(kind)  # type: ignore[misc]
        return _handle_of(kind)

    @classmethod
    async def new(
        cls, within: Channel[Any] | Run[Any], value: V, *, ttl: float = 86400.0
    ) -> "Handle[V]":
        """Store *value* for the client of *within*, and return its handle.

        Args:
            within: the channel of the call, or the run of the job.
            value: an object that JSON can represent, of at most 65,536 bytes. If its type is
                generic, write it: `Handle[list[str]].new(channel, ["a cup"])`.
            ttl: seconds without use after which the value expires. A call that gets the handle as
                an argument, and each method of the handle, is a use. Default: a day.

        Raises:
            ToolError: the client has 1000 values of this type already, or this one is too large.
            ContractError: the value has no JSON form, or another type.
        """
        if not 0 < ttl <= _MAX_TTL:
            raise ContractError(f"Handle.new: ttl must be seconds up to ten years, not {ttl!r}")
        kind: Any = cls if cls._type is not None else _handle_of(cast(Any, type(value)))
        owner, data = _owner_of(within)(), kind._to_json(value)
        if await owner.store.count(kind._label(owner, owner.client)) >= _MAX_OF_CLIENT:
            raise ToolError(f"There are already {_MAX_OF_CLIENT} of {kind._title}: delete one.")
        # Names begin with the time, so that a listing is in the order of creation.
        name = round(owner.store.now() * 1000).to_bytes(6) + token_bytes(6)
        bound = kind._name, owner.principal
        id = owner.seal.seal(Purpose.HANDLE, _SEALED.pack(name, ttl), *bound, ttl=inf)
        made: Handle[V] = kind(id, within)
        await made._write(made._location(), _StoredValue(id, owner.client, 0.0, data), 0)
        return made

    @classmethod
    async def list(cls, within: Channel[Any] | Run[Any]) -> "_HandleList[T]":
        """Return the handles of this type that the client of *within* has, the oldest first.

            carts = await Handle[Cart].list(channel)

        An anonymous client over HTTP has no list: its address may be that of others, too.
        """
        cls.schema()  # it has a type
        owner, last = _owner_of(within)(), None
        found: _HandleList[T] = []
        if owner.principal is None and owner.client.startswith(ADDRESS):
            return found
        while page := await owner.store.find(cls._label(owner, owner.client), last, _PAGE):
            found += [cls(_decode(each.value).id, within) for each in page]
            last = page[-1].key
        return found

    async def get(self) -> T:
        """Return the value as it is now. To change it, use `async with`."""
        await self.check()
        record, _ = await self._read(self._location())
        return self._value_of(record)

    async def delete(self) -> None:
        """Delete the value. Within `async with`, nothing is written at the end of the block."""
        location, self._change = self._location(), None
        await location.owner.store.apply(Delete(location.key))

    async def __aenter__(self) -> T:
        location, outer = self._location(), _outer_changes()
        if any(each.key == location.key for each in outer):
            raise ToolError(f"This call is changing the {self._title} already: give its id once.")
        # By chance, so that of two calls that wait for each other one is the first to give up.
        left = (_end_of(outer) - location.owner.store.now()) * (1 + random()) / 2
        try:
            async with asyncio.timeout(min(_MAX_WAIT, left)):
                record, version = await self._lease(location)
        except TimeoutError:
            busy = f"The {self._title} is being changed by other calls: try again later."
            raise ToolError(busy, retry=True) from None
        value = self._value_of(record)
        self._change = _Change(self, location.key, record, version, value)
        _changes.set((*outer, self._change))
        return value

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        change, self._change = self._change, None
        if change is None:  # deleted in the block
            return
        data, failed = change.record.value, True
        try:
            if kind is None:
                if self.get_owner().store.now() >= _end_of(_outer_changes()):
                    slow = f"The {self._title} was not changed: the call took too long."
                    raise ToolError(slow, retry=True)
                data, failed = self._to_json(change.value), False
        finally:
            # Written in any case, since others wait for the end of the lease.
            record = replace(change.record, value=data, leased_until=0.0)
            with suppress(StoreError, ToolError) if failed else nullcontext():
                await run_to_completion(self._finish(record, change.version))

    async def _finish(self, record: _StoredValue, version: int) -> None:
        try:
            await self._write(self._location(), record, version)
        except Conflict as lost:
            late = f"The {self._title} was not changed: meanwhile another call has changed or"
            raise ToolError(f"{late} deleted it, or it has expired.", retry=True) from lost

    async def _lease(self, location: _Location) -> tuple[_StoredValue, int]:
        """Wait for the lease, and take it. Return the record, and the version that it has then.

        If this is cancelled, or the store fails, the lease may be taken, until it ends.
        """
        pause, longest = _PAUSES
        while True:
            record, version = await self._read(location)
            now = location.owner.store.now()
            if record.leased_until <= now and self._change is None:
                record = replace(record, leased_until=now + _LEASE)
                with suppress(Conflict):  # another call was faster
                    await self._write(location, record, version)
                    return record, version + 1
            await asyncio.sleep(random() * pause)
            pause = min(2 * pause, longest)

    async def _read(self, location: _Location) -> tuple[_StoredValue, int]:
        entry = await location.owner.store.get(location.key)
        if entry is None:
            raise self._refusal()
        return _decode(entry.value), entry.version

    async def _write(self, location: _Location, record: _StoredValue, version: int) -> None:
        data, client = msgspec.msgpack.encode(record), record.client
        labels = [self._label(location.owner, client)]
        put = Put(location.key, data, location.ttl, version, client, version == 0, labels)
        await location.owner.store.apply(put)

    def _location(self) -> _Location:
        """Return the location of the value.

        Raises:
            ToolError: the id was not made for this client and type.
        """
        owner = self.get_owner()
        try:
            sealed = owner.seal.open(Purpose.HANDLE, self.id, self._name, owner.principal)
        except SealError:
            raise self._refusal() from None
        name, ttl = _SEALED.unpack(sealed)
        return _Location(owner, f"{owner.audience}/handle:{name.hex()}", ttl)

    async def check(self) -> None:
        """Check that the value exists, and renew its expiry."""
        location = self._location()
        if not await location.owner.store.touch(location.key, location.ttl):
            raise self._refusal()

    def _refusal(self) -> ToolError:
        # One text for all causes: it must not tell whether another client has the value.
        text = f"there is no such {self._title}: the id is wrong, or it has expired or was deleted"
        return ToolError(text)

    # The type of the values.

    @classmethod
    def schema(cls) -> dict[str, Any]:
        if cls._type is None:
            raise ConfigurationError("a Handle needs the type of its values: Handle[Cart]")
        codec_of(cls.__name__, cls._type)
        text = f"Id of the {cls._title}, as another tool of this server has returned it"
        return {"type": "string", "description": text}

    @classmethod
    def _label(cls, owner: Owner, client: str) -> str:
        return f"{owner.audience}/handles:{cls._name}:{client}"

    @classmethod
    def _to_json(cls, value: Any) -> bytes:
        encoded = msgspec.json.encode(to_json(cls._title, value, codec_of(cls._title, cls._type)))
        if len(encoded) > _MAX_BYTES:
            size = f"{len(encoded)} bytes, but the maximum is {_MAX_BYTES}."
            raise ToolError(f"The {cls._title} would have {size}")
        return encoded

    def _value_of(self, record: _StoredValue) -> T:
        codec, plain = codec_of(self._title, self._type), msgspec.json.decode(record.value)
        value: T = plain if codec is None else codec.decode(plain)
        return value


def _owner_of(within: Channel[Any] | Run[Any]) -> GetOwner:
    return within.owner if isinstance(within, Run) else owner_of(within)


def _outer_changes() -> tuple[_Change, ...]:
    """Return the blocks that the current task is in."""
    return tuple(each for each in _changes.get() if each.handle._change is each)


def _end_of(outer: Sequence[_Change]) -> float:
    """Return the time until which a block within the blocks *outer* may be written."""
    # The rest of their leases is for their own ends.
    return min([each.record.leased_until for each in outer], default=inf) - _LEASE / 5


def _main() -> str:
    """Return the name by which other processes import the script of this one."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(file or "__main__").stem


# Cached, since types are compared by identity, and bounded: types may be made at run time.
@lru_cache(maxsize=1024)
def _handle_of(kind: Any) -> Any:
    title = str(getattr(kind, "__name__", kind))
    name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else repr(kind)
    # The name is the same in all processes: one may be the script that another one imports, and
    # functions in annotations have other addresses there.
    name = re.sub(r"(?<![\w.])__main__(?=\.)", _main(), re.sub(r" at 0x\w+", "", name))
    members = {"_type": kind, "_title": title, "_name": name, "__module__": __name__}
    return type(f"Handle[{title}]", (Handle,), members)
