"""The contract of the records of a store: versions, atomic writes, labels and expiry."""

import asyncio
from collections.abc import Sequence

import pytest

from genmcp.errors import Conflict, ContractError
from genmcp.stores.store import Append, Delete, FoundEntry, Op, Put, Store, StoreEntry
from tests.contracts.bench import BOUND, StoreBench, data_of, entry_of, keys_of


class RecordContract(StoreBench):
    """`Store.get` and `Store.apply`: versions, compare-and-set, and all or nothing."""

    async def test_unknown_key_has_no_record(self, store: Store) -> None:
        """A key that was never written has no record."""
        assert await store.get("task:1") is None

    async def test_put_replaces_and_increments_the_version(self, store: Store) -> None:
        """Each Put makes the version one larger."""
        await store.apply(Put("task:1", b"one"))
        first = await entry_of(store, "task:1")
        await store.apply(Put("task:1", b"two"))

        assert first.value == b"one"
        assert StoreEntry(b"two", first.version + 1) == await store.get("task:1")

    async def test_put_expecting_none_succeeds_once(self, store: Store) -> None:
        """With expect=0 a record is created only if the key is free."""
        await store.apply(Put("task:1", b"one", expect=0))
        with pytest.raises(Conflict, match="task:1"):
            await store.apply(Put("task:1", b"two", expect=0))

        assert (await entry_of(store, "task:1")).value == b"one"

    async def test_put_expecting_a_version_succeeds_once(self, store: Store) -> None:
        """A version that was replaced cannot be replaced again, and an absent one never."""
        await store.apply(Put("task:1", b"one"))
        version = (await entry_of(store, "task:1")).version
        await store.apply(Put("task:1", b"two", expect=version))
        with pytest.raises(Conflict):
            await store.apply(Put("task:1", b"three", expect=version))
        with pytest.raises(Conflict):
            await store.apply(Put("task:2", b"three", expect=version))

        assert (await entry_of(store, "task:1")).value == b"two"
        assert await store.get("task:2") is None

    async def test_delete_removes_the_record(self, store: Store) -> None:
        """A deleted record is gone; deleting an unknown one is not an error."""
        await store.apply(Put("task:1", b"one"))
        await store.apply(Delete("task:1"))
        await store.apply(Delete("task:1"), Delete("task:1#call"))

        assert await store.get("task:1") is None

    async def test_delete_expecting_a_version_takes_it_once(self, store: Store) -> None:
        """Of many that expect one version, one deletes it."""
        await store.apply(Put("task:1", b"one"))
        version = (await entry_of(store, "task:1")).version
        with pytest.raises(Conflict):
            await store.apply(Delete("task:1", expect=version + 1))

        async def taken() -> bool:
            try:
                await store.apply(Delete("task:1", expect=version))
            except Conflict:
                return False
            return True

        assert sorted(await asyncio.gather(*(taken() for _ in range(10)))) == [False] * 9 + [True]

    async def test_delete_expecting_none_spares_a_new_record(self, store: Store) -> None:
        """A writer that has found no record must not delete one that was written since."""
        await store.apply(Delete("task:1", expect=0))
        await store.apply(Put("task:1", b"one"))
        with pytest.raises(Conflict):
            await store.apply(Delete("task:1", expect=0))

        assert (await entry_of(store, "task:1")).value == b"one"

    @pytest.mark.parametrize("runs_out", [True, False])
    async def test_version_of_a_deleted_record_is_not_reused(
        self, store: Store, *, runs_out: bool
    ) -> None:
        """The holder of an expired lease cannot renew that of its successor."""
        unit = self.unit
        versions = set()
        for _ in range(5):
            await store.apply(Put("lease:sweep", b"mine", ttl=10 * unit, expect=0))
            await store.apply(Put("lease:sweep", b"mine", ttl=10 * unit))
            await store.apply(Put("other", b""))
            versions |= {(await entry_of(store, "lease:sweep")).version}
            if runs_out:
                await self.advance(11 * unit)
            else:
                await store.apply(Delete("lease:sweep"))
        await store.apply(Put("lease:sweep", b"theirs", ttl=10 * unit, expect=0))

        assert len(versions) == 5
        for version in versions:
            with pytest.raises(Conflict):
                await store.apply(Put("lease:sweep", b"mine", ttl=10 * unit, expect=version))

    async def test_compare_and_set_has_one_winner_a_version(self, store: Store) -> None:
        """Of 100 concurrent increments none is lost, and each version is won once."""
        await store.apply(Put("count", b"0"))
        begun = (await entry_of(store, "count")).version
        won: list[int] = []

        async def increment() -> None:
            while True:
                read = await entry_of(store, "count")
                await asyncio.sleep(0)  # all reads come before all writes
                try:
                    value = b"%d" % (int(read.value) + 1)
                    await store.apply(Put("count", value, expect=read.version))
                except Conflict:
                    continue
                won.append(read.version)
                return

        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(increment() for _ in range(100)))

        assert list(range(begun, begun + 100)) == sorted(won)
        assert StoreEntry(b"100", begun + 100) == await store.get("count")

    async def test_apply_does_all_or_nothing(self, store: Store) -> None:
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

        assert (await entry_of(store, "task:1")).value == b"one"
        assert await data_of(store, "task:1") == [b"made"]
        assert await store.get("task:1#done") is None
        assert await store.get("task:1#more") is None

    async def test_apply_takes_operations_in_order(self, store: Store) -> None:
        """An expect is compared with the result of the operations before it."""
        await store.apply(Put("k", b"1", expect=0), Delete("k"), Put("k", b"2", expect=0))
        version = (await entry_of(store, "k")).version
        await store.apply(Put("k", b"3", expect=version), Put("k", b"4", expect=version + 1))
        await store.apply(Append("k", b"a", ttl=60), Append("k", b"b", ttl=60))
        await store.apply()

        assert StoreEntry(b"4", version + 2) == await store.get("k")
        assert await data_of(store, "k") == [b"a", b"b"]
        with pytest.raises(Conflict):
            await store.apply(Delete("k"), Put("k", b"5", expect=version + 2))
        assert (await entry_of(store, "k")).value == b"4"

    async def test_record_and_log_of_one_name_are_two_things(self, store: Store) -> None:
        """A task's record and its log may have the same name."""
        await store.apply(Append("task:1", b"event", ttl=60))
        assert await store.get("task:1") is None

        await store.apply(Put("task:1", b"record", expect=0), Delete("task:1"))
        assert await data_of(store, "task:1") == [b"event"]

    @pytest.mark.parametrize(
        "ops",
        [
            [Put("task:1", b""), Put("task:2", b"")],
            [Put("task:1", b""), Append("task:2", b"", ttl=60)],
            [Append("task:1#log", b"", ttl=60), Delete("task:1#call"), Delete("task:10#call")],
            [Delete("task:1#call"), Put("call", b"")],
        ],
    )
    async def test_apply_rejects_two_subjects(self, store: Store, ops: Sequence[Op]) -> None:
        """An engine that distributes its data cannot write two subjects together."""
        await store.apply(Put("task:1#call", b"one"))
        with pytest.raises(ContractError, match=r"'task:1' and '(task:2|task:10|call)'"):
            await store.apply(*ops)

        assert (await entry_of(store, "task:1#call")).value == b"one"
        assert await store.get("task:1") is None
        assert await data_of(store, "task:1#log") == []

    async def test_apply_writes_all_parts_of_a_subject(self, store: Store) -> None:
        """Records and logs are parts of a subject if their names begin with it and "#"."""
        await store.apply(
            Put("task:1", b"record"),
            Put("task:1#call", b"call"),
            Append("task:1", b"1", ttl=60),
            Append("task:1#a#b", b"2", ttl=60),
        )
        assert (await entry_of(store, "task:1#call")).value == b"call"
        assert await data_of(store, "task:1#a#b") == [b"2"]

        await store.apply(Delete("task:1"), Delete("task:1#call"))
        assert await store.get("task:1#call") is None


class LabelContract(StoreBench):
    """`Put.labels`, `Store.find` and `Store.count`."""

    async def test_find_returns_the_records_with_a_label(self, store: Store) -> None:
        """A record is found under each of its labels, with its value and version, and no other."""
        await store.apply(Put("task:1", b"one", labels=("state:queued", "owner:ann")))
        await store.apply(Put("task:2", b"two", labels=("state:queued", "state:queued")))
        await store.apply(Put("task:3", b"three"))
        version = (await entry_of(store, "task:1")).version

        assert list(await store.find("owner:ann")) == [FoundEntry("task:1", b"one", version)]
        assert await keys_of(store, "state:queued") == ["task:1", "task:2"]
        assert await keys_of(store, "state") == []
        assert await store.count("state:queued") == 2
        assert await store.count("state") == 0

    @pytest.mark.parametrize(
        "label", ["owner:a\nb", "owner:%", 'owner:"é"', "owner:*{x}", "Owner:ann"]
    )
    async def test_label_may_be_any_text(self, store: Store, label: str) -> None:
        """Labels contain the names of principals: no character has a meaning."""
        await store.apply(Put("task:1", b"one", labels=(label,)))
        await store.apply(Put("task:2", b"two", labels=("owner:ann", "owner:b", "b")))

        assert await keys_of(store, label) == ["task:1"]
        assert await store.count(label) == 1

    async def test_put_replaces_the_labels(self, store: Store) -> None:
        """The labels of a record are those of its last Put: without labels it has none."""
        await store.apply(Put("task:1", b"one", labels=("state:queued", "owner:ann")))
        await store.apply(Put("task:1", b"two", labels=("state:working", "owner:ann")))

        assert await keys_of(store, "state:queued") == []
        assert await store.count("state:queued") == 0
        for label in ("state:working", "owner:ann"):
            assert await keys_of(store, label) == ["task:1"]

        await store.apply(Put("task:1", b"three"))

        assert await keys_of(store, "state:working") == await keys_of(store, "owner:ann") == []
        assert await store.count("owner:ann") == 0

    async def test_labels_are_written_with_their_record_or_not_at_all(self, store: Store) -> None:
        """A rejected apply changes no label, and one apply leaves those of its last operation."""
        await store.apply(Put("task:1", b"one", labels=("state:queued",)))
        with pytest.raises(Conflict):
            await store.apply(
                Put("task:1", b"two", labels=("state:working",)), Put("task:1#call", b"", expect=9)
            )
        assert await keys_of(store, "state:queued") == ["task:1"]
        assert await keys_of(store, "state:working") == []

        await store.apply(
            Delete("task:1"),
            Put("task:1", b"two", labels=("state:working",)),
            Put("task:1", b"three", labels=("state:failed",)),
            Put("task:1#call", b"", labels=("state:failed",)),
            Delete("task:1#call"),
        )
        assert await keys_of(store, "state:queued") == await keys_of(store, "state:working") == []
        assert await keys_of(store, "state:failed") == ["task:1"]

    async def test_delete_removes_the_labels(self, store: Store) -> None:
        """A deleted record is not found, also when it is written again without labels."""
        await store.apply(Put("task:1", b"one", labels=("state:queued",)))
        await store.apply(Delete("task:1"))
        assert await keys_of(store, "state:queued") == []
        assert await store.count("state:queued") == 0

        await store.apply(Put("task:1", b"two"))
        assert await keys_of(store, "state:queued") == []

    async def test_find_never_returns_expired_records(self, store: Store) -> None:
        """Expired records are skipped within a page; their labels do not return with the key."""
        unit = self.unit
        for number in range(6):
            ttl = (10 if number % 2 else 1000) * unit
            await store.apply(Put(f"task:{number}", b"", ttl=ttl, labels=("state:queued",)))
        assert await store.touch("task:1", 1000 * unit)
        await self.advance(20 * unit)

        assert await keys_of(store, "state:queued", limit=3) == ["task:0", "task:1", "task:2"]
        assert await keys_of(store, "state:queued", after="task:2", limit=3) == ["task:4"]

        await store.apply(Put("task:3", b"again"))
        assert "task:3" not in await keys_of(store, "state:queued")

    async def test_count_forgets_expired_records_soon(self, store: Store) -> None:
        """A writer or a sweep removes expired records, and the count with them."""
        unit = self.unit
        await store.apply(Put("task:1", b"", ttl=10 * unit, labels=("state:queued",)))
        await store.apply(Put("task:2", b"", ttl=1000 * unit, labels=("state:queued",)))
        await self.advance(20 * unit)
        async with asyncio.timeout(BOUND):
            while await store.count("state:queued") > 1:
                await store.apply(Put("other", b""))

        assert await keys_of(store, "state:queued") == ["task:2"]

    async def test_find_pages_in_the_order_of_the_keys(self, store: Store) -> None:
        """A page continues after a key that may be gone. Keys are ordered by code point."""
        names = ["task:10", "task:2", "task:B", "task:a", "task:é", "task:\U0001f600"]
        for name in reversed(names):
            await store.apply(Put(name, name.encode(), labels=("state:queued",)))

        first = await keys_of(store, "state:queued", limit=2)
        await store.apply(Delete(first[-1]))
        second = await keys_of(store, "state:queued", first[-1], limit=3)
        assert first + second == names[:5]
        assert await keys_of(store, "state:queued", second[-1], limit=3) == names[5:]
        assert await keys_of(store, "state:queued", names[-1]) == []
        assert await keys_of(store, "state:queued", "") == [names[0], *names[2:]]
        assert await keys_of(store, "state:queued", limit=0) == []

    async def test_many_records_have_one_label(self, store: Store) -> None:
        """A thousand records with a label are all found, page by page."""
        names = [f"task:{number:04}" for number in range(1000)]
        await asyncio.gather(*(store.apply(Put(name, b"", labels=("all",))) for name in names))

        found: list[str] = []
        while page := await keys_of(store, "all", found[-1] if found else None, limit=300):
            found += page
        assert found == names
        assert await store.count("all") == 1000


class ExpiryContract(StoreBench):
    """`Store.now`, `Store.touch` and the ttl of records."""

    async def test_now_is_the_clock_of_ttls(self, store: Store) -> None:
        """A record expires its ttl after the time that `now` gave when it was written."""
        unit = self.unit
        written = store.now()
        await store.apply(Put("k", b"", ttl=10 * unit))
        await self.advance(9 * unit)
        assert abs(store.now() - written - 9 * unit) < unit
        assert await store.get("k")

        await self.advance(2 * unit)
        assert store.now() > written + 10 * unit
        assert await store.get("k") is None

    async def test_record_expires_after_its_ttl(self, store: Store) -> None:
        """A record lives for its ttl, or until it is deleted."""
        unit = self.unit
        for key, ttl in (("short", 10 * unit), ("long", 20 * unit), ("ever", None)):
            await store.apply(Put(key, b"", ttl=ttl))
        await self.advance(11 * unit)

        assert await store.get("short") is None
        assert await store.get("long")
        await store.apply(Put("short", b"again", expect=0))
        await self.advance(10 * unit)
        assert await store.get("long") is None
        assert await store.get("ever")

    async def test_put_sets_a_new_ttl(self, store: Store) -> None:
        """The last Put alone sets the lifetime of the record."""
        unit = self.unit
        for key, ttl in (("longer", 40 * unit), ("shorter", 5 * unit), ("ever", None)):
            await store.apply(Put(key, b"", ttl=20 * unit))
            await store.apply(Put(key, b"", ttl=ttl))
        await self.advance(21 * unit)

        assert await store.get("longer")
        assert await store.get("shorter") is None
        assert await store.get("ever")

    async def test_touch_sets_a_new_ttl_and_keeps_the_version(self, store: Store) -> None:
        """A touched record lives for the new ttl, and its version stays valid."""
        unit = self.unit
        await store.apply(Put("longer", b"", ttl=10 * unit))
        await store.apply(Put("shorter", b"", ttl=100 * unit))
        read = await entry_of(store, "longer")

        assert await store.touch("longer", 60 * unit)
        assert await store.touch("shorter", 10 * unit)
        await self.advance(11 * unit)
        assert read == await store.get("longer")
        assert await store.get("shorter") is None

    async def test_touch_does_not_restore_an_expired_record(self, store: Store) -> None:
        """To touch an unknown record returns False, and creates nothing."""
        unit = self.unit
        await store.apply(Put("gone", b"", ttl=10 * unit))
        await self.advance(11 * unit)

        assert not await store.touch("gone", 60 * unit)
        assert not await store.touch("never", 60 * unit)
        assert await store.get("gone") is None
