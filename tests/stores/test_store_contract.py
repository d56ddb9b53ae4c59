"""The contract of the records and logs of every store.

To test another store, add a function like `memory` to the parameters of the fixture `bench`. The
contract of accounts is in test_accounts_contract.py, that of `Store.deliveries` in
test_deliveries_contract.py. Durability, and access by several processes, are not tested here: each
store that offers them has tests of its own.
"""

import asyncio
import string
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from genmcp.errors import Conflict, ContractError, LogTruncated, StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import (
    Append,
    Delete,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    Store,
    StoreEntry,
    subject_of,
)
from tests.support.clock import Clock

BOUND = 5.0
"""Seconds after which what should have come is said not to come."""

PassTime: TypeAlias = Callable[[float], Awaitable[None]]


class Bench(NamedTuple):
    """A store under test, and how its time passes: at a clock's word, or by sleeping."""

    store: Store
    advance: PassTime


def memory(folder: Path) -> Bench:
    clock = Clock()
    return Bench(MemoryStore(clock=clock), clock.advance)


def sqlite(folder: Path) -> Bench:
    clock = Clock()
    return Bench(SQLiteStore(folder / "store.db", clock=clock), clock.advance)


@pytest.fixture(params=[memory, sqlite])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    bench: Bench = request.param(tmp_path)
    async with aclosing(bench.store):
        yield bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


@pytest.fixture
def advance(bench: Bench) -> PassTime:
    return bench.advance


async def entry(store: Store, key: str) -> StoreEntry:
    found = await store.get(key)
    assert found is not None
    return found


async def data(store: Store, log: str, after: str | None = None) -> list[bytes]:
    return [event.data for event in await store.read(log, after)]


async def take(followed: AsyncGenerator[LogEvent, None], count: int) -> list[bytes]:
    async with asyncio.timeout(BOUND):
        return [(await anext(followed)).data for _ in range(count)]


async def until_it_waits(store: Store) -> None:
    """Let every other asyncio.Task run until it can do nothing but wait."""
    for _ in range(5):
        await store.get("")  # earlier operations have completed
        for _ in range(5):
            await asyncio.sleep(0)


# Records


async def test_get_gives_nothing_where_nothing_was_put(store: Store) -> None:
    """A key that was never written has no record."""
    assert await store.get("task:1") is None


async def test_put_replaces_and_increments_the_version(store: Store) -> None:
    """Each Put makes the version one larger."""
    await store.apply(Put("task:1", b"one"))
    first = await entry(store, "task:1")
    await store.apply(Put("task:1", b"two"))

    assert first.value == b"one"
    assert StoreEntry(b"two", first.version + 1) == await store.get("task:1")


async def test_put_expecting_none_succeeds_once(store: Store) -> None:
    """With expect=0 the record is created only if there is none."""
    await store.apply(Put("task:1", b"one", expect=0))
    with pytest.raises(Conflict, match="task:1"):
        await store.apply(Put("task:1", b"two", expect=0))

    assert (await entry(store, "task:1")).value == b"one"


async def test_put_expecting_a_version_succeeds_once(store: Store) -> None:
    """A version that was replaced cannot be replaced again, and an absent one never."""
    await store.apply(Put("task:1", b"one"))
    version = (await entry(store, "task:1")).version
    await store.apply(Put("task:1", b"two", expect=version))
    with pytest.raises(Conflict):
        await store.apply(Put("task:1", b"three", expect=version))
    with pytest.raises(Conflict):
        await store.apply(Put("task:2", b"three", expect=version))

    assert (await entry(store, "task:1")).value == b"two"
    assert await store.get("task:2") is None


async def test_delete_removes_the_record(store: Store) -> None:
    """A deleted record is gone; deleting an unknown one is not an error."""
    await store.apply(Put("task:1", b"one"))
    await store.apply(Delete("task:1"))
    await store.apply(Delete("task:1"), Delete("task:1#call"))

    assert await store.get("task:1") is None


async def test_delete_expecting_a_version_takes_it_once(store: Store) -> None:
    """Of many who take one version, one does."""
    await store.apply(Put("task:1", b"one"))
    version = (await entry(store, "task:1")).version
    with pytest.raises(Conflict):
        await store.apply(Delete("task:1", expect=version + 1))

    async def taken() -> bool:
        try:
            await store.apply(Delete("task:1", expect=version))
        except Conflict:
            return False
        return True

    assert sorted(await asyncio.gather(*(taken() for _ in range(10)))) == [False] * 9 + [True]


async def test_delete_expecting_none_spares_a_new_record(store: Store) -> None:
    """A writer that has found no record must not delete one that was written since."""
    await store.apply(Delete("task:1", expect=0))
    await store.apply(Put("task:1", b"one"))
    with pytest.raises(Conflict):
        await store.apply(Delete("task:1", expect=0))

    assert (await entry(store, "task:1")).value == b"one"


@pytest.mark.parametrize("runs_out", [True, False])
async def test_version_of_a_deleted_record_is_not_reused(
    store: Store, advance: PassTime, *, runs_out: bool
) -> None:
    """The holder of an expired lease cannot renew that of its successor."""
    versions = set()
    for _ in range(5):
        await store.apply(Put("lease:sweep", b"mine", ttl=10, expect=0))
        await store.apply(Put("lease:sweep", b"mine", ttl=10))
        await store.apply(Put("other", b""))
        versions |= {(await entry(store, "lease:sweep")).version}
        if runs_out:
            await advance(11)
        else:
            await store.apply(Delete("lease:sweep"))
    await store.apply(Put("lease:sweep", b"theirs", ttl=10, expect=0))

    assert len(versions) == 5
    for version in versions:
        with pytest.raises(Conflict):
            await store.apply(Put("lease:sweep", b"mine", ttl=10, expect=version))


async def test_compare_and_set_has_one_winner_a_version(store: Store) -> None:
    """Of 100 concurrent increments none is lost, and each version is won once."""
    await store.apply(Put("count", b"0"))
    begun = (await entry(store, "count")).version
    won: list[int] = []

    async def increment() -> None:
        while True:
            read = await entry(store, "count")
            await asyncio.sleep(0)  # all reads come before all writes
            try:
                await store.apply(Put("count", b"%d" % (int(read.value) + 1), expect=read.version))
            except Conflict:
                continue
            won.append(read.version)
            return

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(increment() for _ in range(100)))

    assert list(range(begun, begun + 100)) == sorted(won)
    assert StoreEntry(b"100", begun + 100) == await store.get("count")


# Several operations at once


async def test_apply_does_all_or_nothing(store: Store) -> None:
    """One expect that does not hold, and nothing is written, before it or after."""
    await store.apply(Put("task:1", b"one"), Append("task:1", b"made", ttl=60))
    with pytest.raises(Conflict):
        await store.apply(
            Append("task:1", b"changed", ttl=60),
            Put("task:1", b"two"),
            Delete("task:1#lock"),
            Put("task:1#done", b"", expect=7),
            Put("task:1#more", b""),
        )

    assert (await entry(store, "task:1")).value == b"one"
    assert await data(store, "task:1") == [b"made"]
    assert await store.get("task:1#done") is None
    assert await store.get("task:1#more") is None


async def test_apply_takes_operations_in_order(store: Store) -> None:
    """An expect is compared with the result of the operations before it."""
    await store.apply(Put("k", b"1", expect=0), Delete("k"), Put("k", b"2", expect=0))
    version = (await entry(store, "k")).version
    await store.apply(Put("k", b"3", expect=version), Put("k", b"4", expect=version + 1))
    await store.apply(Append("k", b"a", ttl=60), Append("k", b"b", ttl=60))
    await store.apply()

    assert StoreEntry(b"4", version + 2) == await store.get("k")
    assert await data(store, "k") == [b"a", b"b"]
    with pytest.raises(Conflict):
        await store.apply(Delete("k"), Put("k", b"5", expect=version + 2))
    assert (await entry(store, "k")).value == b"4"


async def test_record_and_log_of_one_name_are_two_things(store: Store) -> None:
    """A task's record and its log may have the same name."""
    await store.apply(Append("task:1", b"event", ttl=60))
    assert await store.get("task:1") is None

    await store.apply(Put("task:1", b"record", expect=0), Delete("task:1"))
    assert await data(store, "task:1") == [b"event"]


@pytest.mark.parametrize(
    "ops",
    [
        [Put("task:1", b""), Put("task:2", b"")],
        [Put("task:1", b""), Append("task:2", b"", ttl=60)],
        [Append("task:1#log", b"", ttl=60), Delete("task:1#call"), Delete("task:10#call")],
        [Delete("task:1#call"), Put("call", b"")],
    ],
)
async def test_apply_rejects_two_subjects(store: Store, ops: Sequence[Op]) -> None:
    """An engine that distributes its data cannot write two subjects together."""
    await store.apply(Put("task:1#call", b"one"))
    with pytest.raises(ContractError, match=r"'task:1' and '(task:2|task:10|call)'"):
        await store.apply(*ops)

    assert (await entry(store, "task:1#call")).value == b"one"
    assert await store.get("task:1") is None
    assert await data(store, "task:1#log") == []


async def test_apply_writes_all_parts_of_a_subject(store: Store) -> None:
    """Records and logs are parts of a subject if their names begin with it and "#"."""
    await store.apply(
        Put("task:1", b"record"),
        Put("task:1#call", b"call"),
        Append("task:1", b"1", ttl=60),
        Append("task:1#a#b", b"2", ttl=60),
    )
    assert (await entry(store, "task:1#call")).value == b"call"
    assert await data(store, "task:1#a#b") == [b"2"]

    await store.apply(Delete("task:1"), Delete("task:1#call"))
    assert await store.get("task:1#call") is None


@pytest.mark.parametrize("name", ["task:7", "task:7#call", "task:7#", "task:7#a#b"])
def test_subject_ends_at_the_first_number_sign(name: str) -> None:
    """Further ones belong to the part: it may be text of a client."""
    assert subject_of(name) == "task:7"


# Labels


async def keys(store: Store, label: str, after: str | None = None, limit: int = 100) -> list[str]:
    return [each.key for each in await store.find(label, after, limit)]


async def test_find_returns_the_records_with_a_label(store: Store) -> None:
    """A record is found under each of its labels, with its value and version, and no other."""
    await store.apply(Put("task:1", b"one", labels=("state:queued", "owner:ann")))
    await store.apply(Put("task:2", b"two", labels=("state:queued", "state:queued")))
    await store.apply(Put("task:3", b"three"))
    version = (await entry(store, "task:1")).version

    assert await store.find("owner:ann") == [FoundEntry("task:1", b"one", version)]
    assert await keys(store, "state:queued") == ["task:1", "task:2"]
    assert await keys(store, "state") == []
    assert await store.count("state:queued") == 2
    assert await store.count("state") == 0


@pytest.mark.parametrize("label", ["owner:a\nb", "owner:%", 'owner:"é"', "owner:*{x}", "Owner:ann"])
async def test_label_may_be_any_text(store: Store, label: str) -> None:
    """Labels contain the names of principals: no character has a meaning."""
    await store.apply(Put("task:1", b"one", labels=(label,)))
    await store.apply(Put("task:2", b"two", labels=("owner:ann", "owner:b", "b")))

    assert await keys(store, label) == ["task:1"]
    assert await store.count(label) == 1


async def test_put_replaces_the_labels(store: Store) -> None:
    """The labels of a record are those of its last Put: without labels it has none."""
    await store.apply(Put("task:1", b"one", labels=("state:queued", "owner:ann")))
    await store.apply(Put("task:1", b"two", labels=("state:working", "owner:ann")))

    assert await keys(store, "state:queued") == []
    assert await store.count("state:queued") == 0
    assert await keys(store, "state:working") == await keys(store, "owner:ann") == ["task:1"]

    await store.apply(Put("task:1", b"three"))

    assert await keys(store, "state:working") == await keys(store, "owner:ann") == []
    assert await store.count("owner:ann") == 0


async def test_labels_are_written_with_their_record_or_not_at_all(store: Store) -> None:
    """A rejected apply changes no label, and one apply leaves those of its last operation."""
    await store.apply(Put("task:1", b"one", labels=("state:queued",)))
    with pytest.raises(Conflict):
        await store.apply(
            Put("task:1", b"two", labels=("state:working",)), Put("task:1#call", b"", expect=9)
        )
    assert await keys(store, "state:queued") == ["task:1"]
    assert await keys(store, "state:working") == []

    await store.apply(
        Delete("task:1"),
        Put("task:1", b"two", labels=("state:working",)),
        Put("task:1", b"three", labels=("state:failed",)),
        Put("task:1#call", b"", labels=("state:failed",)),
        Delete("task:1#call"),
    )
    assert await keys(store, "state:queued") == await keys(store, "state:working") == []
    assert await keys(store, "state:failed") == ["task:1"]


async def test_delete_removes_the_labels(store: Store) -> None:
    """A deleted record is not found, also when it is written again without labels."""
    await store.apply(Put("task:1", b"one", labels=("state:queued",)))
    await store.apply(Delete("task:1"))
    assert await keys(store, "state:queued") == []
    assert await store.count("state:queued") == 0

    await store.apply(Put("task:1", b"two"))
    assert await keys(store, "state:queued") == []


async def test_find_never_returns_expired_records(store: Store, advance: PassTime) -> None:
    """Expired records are skipped within a page, and their labels do not come back with the key."""
    for number in range(6):
        ttl = 10 if number % 2 else 1000
        await store.apply(Put(f"task:{number}", b"", ttl=ttl, labels=("state:queued",)))
    assert await store.touch("task:1", 1000)
    await advance(20)

    assert await keys(store, "state:queued", limit=3) == ["task:0", "task:1", "task:2"]
    assert await keys(store, "state:queued", after="task:2", limit=3) == ["task:4"]

    await store.apply(Put("task:3", b"again"))
    assert "task:3" not in await keys(store, "state:queued")


async def test_count_forgets_expired_records_soon(store: Store, advance: PassTime) -> None:
    """A writer or a sweep removes expired records, and the count with them."""
    await store.apply(Put("task:1", b"", ttl=10, labels=("state:queued",)))
    await store.apply(Put("task:2", b"", ttl=1000, labels=("state:queued",)))
    await advance(20)
    async with asyncio.timeout(BOUND):
        while await store.count("state:queued") > 1:
            await store.apply(Put("other", b""))

    assert await keys(store, "state:queued") == ["task:2"]


async def test_find_pages_in_the_order_of_the_keys(store: Store) -> None:
    """Pages continue after a key, whether or not it still exists, by code point and not by case."""
    names = ["task:10", "task:2", "task:B", "task:a", "task:é", "task:\U0001f600"]
    for name in reversed(names):
        await store.apply(Put(name, name.encode(), labels=("state:queued",)))

    first = await keys(store, "state:queued", limit=2)
    await store.apply(Delete(first[-1]))
    second = await keys(store, "state:queued", first[-1], limit=3)
    assert first + second == names[:5]
    assert await keys(store, "state:queued", second[-1], limit=3) == names[5:]
    assert await keys(store, "state:queued", names[-1]) == []
    assert await keys(store, "state:queued", "") == [names[0], *names[2:]]
    assert await keys(store, "state:queued", limit=0) == []


async def test_many_records_have_one_label(store: Store) -> None:
    """A thousand records with a label are all found, page by page."""
    names = [f"task:{number:04}" for number in range(1000)]
    await asyncio.gather(*(store.apply(Put(name, b"", labels=("all",))) for name in names))

    found: list[str] = []
    while page := await keys(store, "all", found[-1] if found else None, limit=300):
        found += page
    assert found == names
    assert await store.count("all") == 1000


# Time


async def test_now_is_the_clock_of_ttls(store: Store, advance: PassTime) -> None:
    """A record expires its ttl after the time that `now` gave when it was written."""
    written = store.now()
    await store.apply(Put("k", b"", ttl=10))
    await advance(9)
    assert abs(store.now() - written - 9) < 1
    assert await store.get("k")

    await advance(2)
    assert store.now() > written + 10
    assert await store.get("k") is None


async def test_record_is_gone_when_its_time_has_run_out(store: Store, advance: PassTime) -> None:
    """A record lives for its ttl, or until it is deleted."""
    for key, ttl in (("short", 10), ("long", 100), ("ever", None)):
        await store.apply(Put(key, b"", ttl=ttl))
    await advance(11)

    assert await store.get("short") is None
    assert await store.get("long")
    await store.apply(Put("short", b"again", expect=0))
    await advance(1000)
    assert await store.get("long") is None
    assert await store.get("ever")


async def test_put_sets_the_time_anew(store: Store, advance: PassTime) -> None:
    """The last Put alone sets the lifetime of the record."""
    for key, ttl in (("longer", 40), ("shorter", 5), ("ever", None)):
        await store.apply(Put(key, b"", ttl=20))
        await store.apply(Put(key, b"", ttl=ttl))
    await advance(21)

    assert await store.get("longer")
    assert await store.get("shorter") is None
    assert await store.get("ever")


async def test_touch_sets_the_time_and_keeps_the_version(store: Store, advance: PassTime) -> None:
    """A touched record lives for the new ttl, and its version stays valid."""
    await store.apply(Put("longer", b"", ttl=10))
    await store.apply(Put("shorter", b"", ttl=100))
    read = await entry(store, "longer")

    assert await store.touch("longer", 60)
    assert await store.touch("shorter", 10)
    await advance(11)
    assert read == await store.get("longer")
    assert await store.get("shorter") is None


async def test_touch_does_not_bring_back_what_is_gone(store: Store, advance: PassTime) -> None:
    """Touching an unknown record returns False, and creates nothing."""
    await store.apply(Put("gone", b"", ttl=10))
    await advance(11)

    assert not await store.touch("gone", 60)
    assert not await store.touch("never", 60)
    assert await store.get("gone") is None


async def test_log_is_gone_a_ttl_after_the_last_append(store: Store, advance: PassTime) -> None:
    """Each append lets the whole log live for another ttl."""
    await store.apply(Append("log", b"1", ttl=10))
    await advance(8)
    await store.apply(Append("log", b"2", ttl=10))
    await advance(8)

    assert await data(store, "log") == [b"1", b"2"]
    await advance(3)
    assert await data(store, "log") == []


# Logs


async def test_read_gives_events_in_order(store: Store) -> None:
    """Reading continues after the last event, in pages of any size."""
    for number in range(7):
        await store.apply(Append("log", b"%d" % number, ttl=60))
        await store.apply(Append("other", b"x", ttl=60))
    first = await store.read("log", limit=3)
    second = await store.read("log", first[-1].id, limit=3)
    third = await store.read("log", second[-1].id, limit=3)

    assert b"".join(event.data for event in [*first, *second, *third]) == b"0123456"
    assert [len(first), len(second), len(third)] == [3, 3, 1]
    assert await data(store, "log", third[-1].id) == []
    assert await data(store, "nothing") == []


async def test_event_ids_are_fit_for_last_event_id(store: Store) -> None:
    """Ids are visible ASCII without a separator, and none occurs twice."""
    await store.apply(*(Append("log", b"", ttl=60) for _ in range(50)))
    ids = [event.id for event in await store.read("log")]

    assert len(set(ids)) == 50
    assert set("".join(ids)) <= set(string.ascii_letters + string.digits + "-_")


async def test_append_keeps_the_newest(store: Store) -> None:
    """Of more than `keep` events the oldest are dropped."""
    await store.apply(*(Append("log", b"%d" % number, ttl=60, keep=3) for number in range(10)))
    assert await data(store, "log") == [b"7", b"8", b"9"]

    await store.apply(Append("log", b"10", ttl=60, keep=1))
    assert await data(store, "log") == [b"10"]


def test_append_keeps_at_least_one() -> None:
    """A log that keeps nothing cannot be followed."""
    with pytest.raises(ContractError, match="keep must be at least 1"):
        Append("log", b"", ttl=60, keep=0)


async def test_reader_is_told_of_a_gap(store: Store) -> None:
    """A resuming reader gets LogTruncated if a later event was dropped, and only then."""
    await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(4)))
    ids = [event.id for event in await store.read("log")]
    await store.apply(Append("log", b"4", ttl=60, keep=3))  # drops 0 and 1

    assert await data(store, "log", ids[1]) == [b"2", b"3", b"4"]
    with pytest.raises(LogTruncated, match="log") as caught:
        await store.read("log", ids[0])
    assert ("log", ids[0]) == (caught.value.log, caught.value.after)
    async with aclosing(store.follow("log", ids[0])) as followed:
        with pytest.raises(LogTruncated):
            await take(followed, 1)


@pytest.mark.parametrize(
    "after", ["", "0", "-1", "x", "zzzzzzzzzzzzzzzzzzzz", "é", "\ud800", "1" * 5000, "1-1", "0/0"]
)
async def test_reader_is_told_of_an_id_that_is_none(store: Store, after: str) -> None:
    """Last-Event-ID is text of a client: never an unexpected exception, never a wrong place."""
    await store.apply(Append("log", b"", ttl=60))
    for log in ("log", "nothing"):
        with pytest.raises(LogTruncated):
            await store.read(log, after)
        async with aclosing(store.follow(log, after)) as followed:
            with pytest.raises(LogTruncated):
                await take(followed, 1)


async def test_log_that_was_gone_begins_past_its_old_ids(store: Store, advance: PassTime) -> None:
    """An id from before a log ran out is not mistaken for one of the log that came after."""
    old: list[str] = []
    missed: list[str] = []  # the events after the last id of an expired log are complete
    for _ in range(3):
        await store.apply(Append("log", b"", ttl=10), Append("log", b"", ttl=10))
        ids = [event.id for event in await store.read("log")]
        assert not set(old) & set(ids)
        for gone in missed:
            with pytest.raises(LogTruncated):
                await store.read("log", gone)
        old += ids
        missed += ids[:1]
        await advance(11)
        with pytest.raises(LogTruncated):
            await store.read("log", ids[0])


# Following


async def test_follow_replays_and_then_goes_on_live(store: Store) -> None:
    """A follower gets the existing events, then new ones."""
    await store.apply(Append("log", b"1", ttl=60), Append("log", b"2", ttl=60))
    async with aclosing(store.follow("log")) as followed:
        assert await take(followed, 2) == [b"1", b"2"]

        waiting = asyncio.ensure_future(take(followed, 2))
        await until_it_waits(store)
        await store.apply(Append("log", b"3", ttl=60))
        await store.apply(Append("other", b"x", ttl=60))
        await store.apply(Append("log", b"4", ttl=60))
        assert await waiting == [b"3", b"4"]


async def test_follow_begins_after_an_event(store: Store) -> None:
    """A resuming client gets the events that it has not seen."""
    await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(3)))
    first, *_, last = await store.read("log")

    async with aclosing(store.follow("log", first.id)) as followed:
        assert await take(followed, 2) == [b"1", b"2"]
    async with aclosing(store.follow("log", last.id)) as followed:
        waiting = asyncio.ensure_future(take(followed, 1))
        await until_it_waits(store)
        await store.apply(Append("log", b"3", ttl=60))
        assert await waiting == [b"3"]


async def test_follow_waits_for_a_log_that_does_not_exist(store: Store) -> None:
    """A log may be followed before its first event."""
    async with aclosing(store.follow("log")) as followed:
        waiting = asyncio.ensure_future(take(followed, 1))
        await until_it_waits(store)
        assert not waiting.done()
        await store.apply(Append("log", b"1", ttl=60))
        assert await waiting == [b"1"]


async def test_follow_replays_a_long_log(store: Store) -> None:
    """However many events there are, a follower gets them all."""
    await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(250)))
    async with aclosing(store.follow("log")) as followed:
        assert [b"%d" % number for number in range(250)] == await take(followed, 250)


async def test_follow_yields_each_event_once_under_races(store: Store) -> None:
    """Followers that join before, amid and after racing appends see the same log."""
    writers, each = 5, 40
    total = writers * each

    async def write(writer: int) -> None:
        for number in range(each):
            await store.apply(Append("log", b"%d:%d" % (writer, number), ttl=60))
            await asyncio.sleep(0)

    async def read(turns: int) -> list[bytes]:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with aclosing(store.follow("log")) as followed:
            got = []
            for _ in range(total):
                got += await take(followed, 1)
                await asyncio.sleep(0)
            return got

    async with asyncio.timeout(BOUND):
        reading = [asyncio.ensure_future(read(turns)) for turns in (0, 3, 25, 60, 500)]
        await asyncio.gather(*(write(writer) for writer in range(writers)))
        followed = await asyncio.gather(*reading)

    kept = [event.data for event in await store.read("log", limit=total + 1)]
    assert total == len(set(kept))
    assert [kept] * 5 == followed
    for writer in range(writers):
        mine = [event for event in kept if event.startswith(b"%d:" % writer)]
        assert [b"%d:%d" % (writer, number) for number in range(each)] == mine


async def test_follower_that_fell_behind_is_told(store: Store) -> None:
    """A slow follower gets complete events; then LogTruncated."""
    async with aclosing(store.follow("log")) as followed:
        waiting = asyncio.ensure_future(take(followed, 1))
        await until_it_waits(store)
        await store.apply(Append("log", b"0", ttl=60))
        assert await waiting == [b"0"]

        await store.apply(*(Append("log", b"%d" % n, ttl=60, keep=3) for n in range(1, 9)))
        with pytest.raises(LogTruncated):
            await take(followed, 1)


async def test_follower_is_told_that_it_missed_the_beginning(store: Store) -> None:
    """Events that come and go between two looks of a follower are not passed over in silence."""
    async with aclosing(store.follow("log")) as followed:
        waiting = asyncio.ensure_future(take(followed, 1))
        await until_it_waits(store)
        await store.apply(*(Append("log", b"%d" % n, ttl=60, keep=3) for n in range(9)))
        with pytest.raises(LogTruncated):
            await waiting


async def test_follower_that_saw_everything_has_no_gap(store: Store, advance: PassTime) -> None:
    """A log may expire, or drop old events, under a follower that is up to date."""
    async with aclosing(store.follow("log")) as followed:
        for number in range(4):
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_it_waits(store)
            await store.apply(Append("log", b"%d" % number, ttl=10, keep=1))
            assert [b"%d" % number] == await waiting
            await advance(11 * (number % 2))


async def test_follow_can_be_closed_and_cancelled(store: Store) -> None:
    """Either takes effect at once, in the midst of a replay or of a wait."""
    await store.apply(Append("log", b"1", ttl=60), Append("log", b"2", ttl=60))
    followed = store.follow("log")
    await take(followed, 1)
    async with asyncio.timeout(BOUND):
        await followed.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(followed)

    followed = store.follow("log")
    await take(followed, 2)
    waiting = asyncio.ensure_future(take(followed, 1))
    await until_it_waits(store)
    waiting.cancel()
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await waiting
    with pytest.raises(StopAsyncIteration):
        await anext(followed)


def in_another_loop(work: Coroutine[Any, Any, None]) -> Awaitable[None]:
    return asyncio.to_thread(asyncio.run, work)


async def test_store_serves_several_event_loops(store: Store) -> None:
    """An append in another thread's loop wakes a follower, and a version still has one winner."""

    async def write() -> None:
        for number in range(50):
            await store.apply(Append("log", b"%d" % number, ttl=60))
            while True:
                read = await store.get("count")
                value, version = (int(read.value), read.version) if read else (0, 0)
                try:
                    await store.apply(Put("count", b"%d" % (value + 1), expect=version))
                except Conflict:
                    continue
                break

    async with aclosing(store.follow("log")) as followed, asyncio.timeout(BOUND):
        waiting = asyncio.ensure_future(take(followed, 100))
        await until_it_waits(store)
        await asyncio.gather(in_another_loop(write()), in_another_loop(write()))
        got = await waiting

    assert sorted(got) == sorted([b"%d" % number for number in range(50)] * 2)
    assert (await entry(store, "count")).value == b"100"


# The end


async def test_closed_store_is_unavailable(store: Store) -> None:
    """A closed store rejects everything but the time; closing it again does nothing."""
    await store.apply(Put("k", b""), Append("k", b"", ttl=60))
    await store.aclose()
    await store.aclose()

    assert isinstance(store.now(), float)
    asked: Sequence[Coroutine[Any, Any, object]] = (
        store.get("k"),
        store.find("k"),
        store.count("k"),
        store.apply(Put("k", b"")),
        store.touch("k", 1),
        store.read("k"),
        take(store.follow("k"), 1),
    )
    for question in asked:
        with pytest.raises(StoreUnavailable):
            await question


async def test_closing_a_store_ends_its_followers(store: Store) -> None:
    """A follower that waits learns at once that nothing will come."""
    followed = store.follow("log")
    waiting = asyncio.ensure_future(take(followed, 1))
    await until_it_waits(store)
    await store.aclose()

    with pytest.raises(StoreUnavailable):
        await waiting
