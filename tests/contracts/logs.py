"""The contract of the logs of a store: order, retention, replay and followers."""

import asyncio
import string
from contextlib import aclosing

import pytest

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.store import Append, Put, Store
from tests.contracts.bench import (
    BOUND,
    StoreBench,
    data_of,
    entry_of,
    in_another_loop,
    take,
    until_waiting,
)


class LogContract(StoreBench):
    """`Append` and `Store.read`: order, ids, dropped events and expiry."""

    async def test_log_expires_a_ttl_after_the_last_append(self, store: Store) -> None:
        """Each append lets the whole log live for another ttl."""
        unit = self.unit
        await store.apply(Append("log", b"1", ttl=10 * unit))
        await self.advance(8 * unit)
        await store.apply(Append("log", b"2", ttl=10 * unit))
        await self.advance(8 * unit)

        assert await data_of(store, "log") == [b"1", b"2"]
        await self.advance(3 * unit)
        assert await data_of(store, "log") == []

    async def test_concurrent_writes_keep_their_order(self, store: Store) -> None:
        """A process that issues writes one after the other need not wait for each of them."""
        writes = []
        for number in range(200):
            data = b"%d " % number + b"x" * (2000 if number % 50 == 0 else 0)
            write = store.apply(Put("log", data), Append("log", data, ttl=60, keep=1000))
            writes.append(asyncio.ensure_future(write))
            if number % 3 == 0:  # in several turns of the event loop
                await asyncio.sleep(0)
        await asyncio.gather(*writes)

        events = await store.read("log", limit=1000)
        assert [int(event.data.split()[0]) for event in events] == [*range(200)]
        assert (await entry_of(store, "log")).value == events[-1].data

    async def test_read_returns_events_in_order(self, store: Store) -> None:
        """Reading continues after the last event, in pages of any size."""
        for number in range(7):
            await store.apply(Append("log", b"%d" % number, ttl=60))
            await store.apply(Append("other", b"x", ttl=60))
        first = await store.read("log", limit=3)
        second = await store.read("log", first[-1].id, limit=3)
        third = await store.read("log", second[-1].id, limit=3)

        assert b"".join(event.data for event in [*first, *second, *third]) == b"0123456"
        assert [len(first), len(second), len(third)] == [3, 3, 1]
        assert await data_of(store, "log", third[-1].id) == []
        assert await data_of(store, "nothing") == []

    async def test_event_ids_are_fit_for_last_event_id(self, store: Store) -> None:
        """Ids are visible ASCII without a separator, and none occurs twice."""
        await store.apply(*(Append("log", b"", ttl=60) for _ in range(50)))
        ids = [event.id for event in await store.read("log")]

        assert len(set(ids)) == 50
        assert set("".join(ids)) <= set(string.ascii_letters + string.digits + "-_")

    async def test_append_keeps_the_newest(self, store: Store) -> None:
        """Of more than `keep` events the oldest are dropped."""
        await store.apply(*(Append("log", b"%d" % number, ttl=60, keep=3) for number in range(10)))
        assert await data_of(store, "log") == [b"7", b"8", b"9"]

        await store.apply(Append("log", b"10", ttl=60, keep=1))
        assert await data_of(store, "log") == [b"10"]

    async def test_read_reports_a_gap(self, store: Store) -> None:
        """A resuming reader gets LogTruncated if a later event was dropped, and only then."""
        await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(4)))
        ids = [event.id for event in await store.read("log")]
        await store.apply(Append("log", b"4", ttl=60, keep=3))  # drops 0 and 1

        assert await data_of(store, "log", ids[1]) == [b"2", b"3", b"4"]
        with pytest.raises(LogTruncated, match="log") as caught:
            await store.read("log", ids[0])
        assert ("log", ids[0]) == (caught.value.log, caught.value.after)
        async with aclosing(store.follow("log", ids[0])) as followed:
            with pytest.raises(LogTruncated):
                await take(followed, 1)

    @pytest.mark.parametrize(
        "after",
        ["", "0", "-1", "x", "zzzzzzzzzzzzzzzzzzzz", "é", "\ud800", "1" * 5000, "1-1", "0/0"],
    )
    async def test_read_rejects_an_unknown_id(self, store: Store, after: str) -> None:
        """Last-Event-ID is text of a client: never an unexpected exception, never a wrong place."""
        await store.apply(Append("log", b"", ttl=60))
        for log in ("log", "nothing"):
            with pytest.raises(LogTruncated):
                await store.read(log, after)
            async with aclosing(store.follow(log, after)) as followed:
                with pytest.raises(LogTruncated):
                    await take(followed, 1)

    async def test_log_written_again_gets_new_ids(self, store: Store) -> None:
        """An id from before a log ran out is not mistaken for one of the log that came after."""
        unit = self.unit
        old: list[str] = []
        missed: list[str] = []  # the events after the last id of an expired log are complete
        for _ in range(3):
            await store.apply(Append("log", b"", ttl=10 * unit), Append("log", b"", ttl=10 * unit))
            ids = [event.id for event in await store.read("log")]
            assert not set(old) & set(ids)
            for gone in missed:
                with pytest.raises(LogTruncated):
                    await store.read("log", gone)
            old += ids
            missed += ids[:1]
            await self.advance(11 * unit)
            with pytest.raises(LogTruncated):
                await store.read("log", ids[0])


class FollowContract(StoreBench):
    """`Store.follow`: no gap, no duplicates, and an error for a follower that fell behind."""

    async def test_follow_replays_and_continues_live(self, store: Store) -> None:
        """A follower gets the existing events, then new ones."""
        await store.apply(Append("log", b"1", ttl=60), Append("log", b"2", ttl=60))
        async with aclosing(store.follow("log")) as followed:
            assert await take(followed, 2) == [b"1", b"2"]

            waiting = asyncio.ensure_future(take(followed, 2))
            await until_waiting(store)
            await store.apply(Append("log", b"3", ttl=60))
            await store.apply(Append("other", b"x", ttl=60))
            await store.apply(Append("log", b"4", ttl=60))
            assert await waiting == [b"3", b"4"]

    async def test_follow_begins_after_an_event(self, store: Store) -> None:
        """A resuming client gets the events that it has not seen."""
        await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(3)))
        first, *_, last = await store.read("log")

        async with aclosing(store.follow("log", first.id)) as followed:
            assert await take(followed, 2) == [b"1", b"2"]
        async with aclosing(store.follow("log", last.id)) as followed:
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_waiting(store)
            await store.apply(Append("log", b"3", ttl=60))
            assert await waiting == [b"3"]

    async def test_follow_waits_for_a_log_that_does_not_exist(self, store: Store) -> None:
        """A log may be followed before its first event."""
        async with aclosing(store.follow("log")) as followed:
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_waiting(store)
            assert not waiting.done()
            await store.apply(Append("log", b"1", ttl=60))
            assert await waiting == [b"1"]

    async def test_follow_replays_a_long_log(self, store: Store) -> None:
        """However many events there are, a follower gets them all."""
        await store.apply(*(Append("log", b"%d" % number, ttl=60) for number in range(250)))
        async with aclosing(store.follow("log")) as followed:
            assert [b"%d" % number for number in range(250)] == await take(followed, 250)

    async def test_follow_yields_each_event_once_under_races(self, store: Store) -> None:
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

    async def test_slow_follower_gets_log_truncated(self, store: Store) -> None:
        """A slow follower gets complete events; then LogTruncated."""
        async with aclosing(store.follow("log")) as followed:
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_waiting(store)
            await store.apply(Append("log", b"0", ttl=60))
            assert await waiting == [b"0"]

            await store.apply(*(Append("log", b"%d" % n, ttl=60, keep=3) for n in range(1, 9)))
            with pytest.raises(LogTruncated):
                await take(followed, 1)

    async def test_follower_learns_that_its_log_has_expired(self, store: Store) -> None:
        """Events that expired unread are missing, although the log was written again since."""
        unit = self.unit
        async with aclosing(store.follow("log")) as followed:
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_waiting(store)
            await store.apply(Append("log", b"0", ttl=10 * unit))
            assert await waiting == [b"0"]

            # So soon that no sweep has removed the event before the log is written again.
            await store.apply(Append("log", b"1", ttl=0.1 * unit))
            await self.advance(0.2 * unit)
            await store.apply(Append("log", b"2", ttl=10 * unit))
            with pytest.raises(LogTruncated):
                await take(followed, 1)

    async def test_follower_learns_that_the_beginning_is_gone(self, store: Store) -> None:
        """A follower does not skip events that are dropped before it reads them."""
        async with aclosing(store.follow("log")) as followed:
            waiting = asyncio.ensure_future(take(followed, 1))
            await until_waiting(store)
            await store.apply(*(Append("log", b"%d" % n, ttl=60, keep=3) for n in range(9)))
            with pytest.raises(LogTruncated):
                await waiting

    async def test_follower_that_saw_everything_has_no_gap(self, store: Store) -> None:
        """A log may expire, or drop old events, under a follower that is up to date."""
        unit = self.unit
        async with aclosing(store.follow("log")) as followed:
            for number in range(4):
                waiting = asyncio.ensure_future(take(followed, 1))
                await until_waiting(store)
                await store.apply(Append("log", b"%d" % number, ttl=10 * unit, keep=1))
                assert [b"%d" % number] == await waiting
                await self.advance(11 * (number % 2) * unit)

    async def test_follow_can_be_closed_and_cancelled(self, store: Store) -> None:
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
        await until_waiting(store)
        waiting.cancel()
        async with asyncio.timeout(BOUND):
            with pytest.raises(asyncio.CancelledError):
                await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(followed)

    async def test_store_serves_several_event_loops(self, store: Store) -> None:
        """An append in another thread wakes a follower, and a version still has one winner."""

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
            await until_waiting(store)
            await asyncio.gather(in_another_loop(write()), in_another_loop(write()))
            got = await waiting

        assert sorted(got) == sorted([b"%d" % number for number in range(50)] * 2)
        assert (await entry_of(store, "count")).value == b"100"
