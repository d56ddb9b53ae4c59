"""Properties of the store in a file: full disks, locks, restarts, and files of other programs."""

import asyncio
import os
import shutil
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import TypeAlias

import pytest

import genmcp.stores
from genmcp.errors import ConfigurationError, Conflict, LogTruncated, StoreUnavailable
from genmcp.stores.deliveries import Delivery
from genmcp.stores.sqlite import file as file_module
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Delete, LogEvent, Put, StoreEntry
from tests.support.clock import Clock

pytestmark = pytest.mark.slow

BOUND = 10.0
"""Seconds after which a test that waits fails."""

SOURCE = Path(genmcp.stores.__file__).parents[2]

PRELUDE = r"""
import asyncio, os, resource, sys
from genmcp.errors import ConfigurationError, Conflict, StoreUnavailable
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Put
path = sys.argv[1]

def report(*words):
    print(" ".join(map(str, words)) + "\n", end="", flush=True)  # one write: others report, too
"""

Opened: TypeAlias = Callable[..., SQLiteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opened]:
    """Open the store at *path*; two of them are like those of two processes."""
    stores: list[SQLiteStore] = []

    def opened(**options: object) -> SQLiteStore:
        stores.append(SQLiteStore(path, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@asynccontextmanager
async def python(script: str, path: Path) -> AsyncIterator[Process]:
    """Run *script* in a process of its own, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRELUDE + script, str(path), stdin=PIPE, stdout=PIPE, cwd=SOURCE
    )
    try:
        async with asyncio.timeout(BOUND):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def ended(process: Process) -> list[str]:
    """Return the remaining output of a process that ended successfully."""
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().splitlines()


async def data(followed: AsyncGenerator[LogEvent, None]) -> bytes:
    async with asyncio.timeout(BOUND):
        return (await anext(followed)).data


# Several processes


FORKS = """
files = [path, path + "2"]
store, unused = [SQLiteStore(file) for file in files]

async def write(store, key):
    await store.apply(Put(f"log#{key}", b"", expect=0), Append("log", key.encode(), ttl=60))
    followed = store.follow("log")
    report(key, (await anext(followed)).data.decode())
    await followed.aclose()

async def rejected(make):
    try:
        await make().apply(Put("key", b""))
    except ConfigurationError as error:
        assert "before this process was forked" in str(error), error
        report("rejected")

def child(work):
    pid = os.fork()
    if not pid:
        work()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

child(lambda: asyncio.run(write(store, "child")))
asyncio.run(write(store, "parent"))
child(lambda: asyncio.run(rejected(lambda: store)))
child(lambda: asyncio.run(rejected(lambda: SQLiteStore(path))))
child(lambda: asyncio.run(store.aclose()))
child(lambda: asyncio.run(write(unused, "other file")))
asyncio.run(write(store, "after"))
asyncio.run(store.aclose())
child(lambda: asyncio.run(write(SQLiteStore(path), "closed before")))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_file_is_used_on_one_side_of_a_fork(opened: Opened, path: Path) -> None:
    """A store may be created before a fork. Once it is used, a child gets a clear error.

    SQLite would mistake the locks of the parent for those of the child.
    """
    async with python(FORKS, path) as process:
        printed = await ended(process)

    assert printed == [
        *("child child", "parent child", "rejected", "rejected"),
        *("other file other file", "after child", "closed before child"),
    ]
    assert len(await opened().read("log")) == 4


async def test_store_is_created_by_many_processes(path: Path) -> None:
    """Of processes that start together, one creates the tables."""
    script = "asyncio.run(SQLiteStore(path).apply(Append('log', b'', ttl=60)))"
    async with python(script, path) as one, python(script, path) as two, python(script, path) as go:
        await asyncio.gather(ended(one), ended(two), ended(go))

    async with aclosing(SQLiteStore(path)) as store:
        assert len(await store.read("log")) == 3


# Full disks, and locks of other processes


FILLS = """
store = SQLiteStore(path)

async def fill(name):
    for number in range(10_000):
        key = f"{name}:{number}"
        try:
            await store.apply(Put(key, os.urandom(3000)))
        except StoreUnavailable as error:
            report("full", error)
            return
        report(key)

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
    await asyncio.gather(*(fill(name) for name in range(5)))

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files here")
async def test_full_disk_loses_no_acknowledged_write(opened: Opened, path: Path) -> None:
    """A write without room is rejected, and every acknowledged record is there."""
    async with python(FILLS, path) as process:
        output = await ended(process)
    rejected = [words for words in output if words.startswith("full")]
    kept = [words for words in output if not words.startswith("full")]
    store = opened()

    assert len(rejected) == 5
    assert all(str(path) in words for words in rejected)
    assert len(kept) > 50
    for key in kept:
        assert await store.get(key)
    await store.apply(Put("again", b"x" * 100_000))


async def test_full_sqlite_store_accepts_writes_after_expiry(opened: Opened) -> None:
    """Beyond max_bytes a write is rejected, a small one beside it is not, and expiry makes room."""
    clock = Clock()
    store = opened(max_bytes=200_000, clock=clock)
    await store.apply(Put("old", b"x" * 100_000, ttl=10))
    large, small = await asyncio.gather(
        store.apply(Append("large", b"", ttl=60), Put("large", b"x" * 100_000)),
        store.apply(Put("small", b"")),
        return_exceptions=True,
    )

    assert isinstance(large, StoreUnavailable)
    assert "full" in str(large)
    assert small is None
    assert await store.read("large") == []
    assert await store.get("small")
    clock.now = 11
    await store.apply(Put("large", b"x" * 100_000))


async def test_locked_file_is_unavailable_for_writes_only(opened: Opened, path: Path) -> None:
    """A process that keeps its lock makes writes fail, in bounded time, and no reads."""
    store = opened(timeout=0.05)
    await store.apply(Put("k", b"1"))
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        failed = await asyncio.gather(
            *(store.apply(Put("k", b"2")) for _ in range(3)), return_exceptions=True
        )
        assert await store.get("k")
        other.rollback()
    await store.apply(Put("k", b"3"))

    for error in failed:
        assert isinstance(error, StoreUnavailable)
        assert f"{str(path)!r}: database is locked" in str(error)
    assert await store.get("k") == StoreEntry(b"3", 2)


async def test_store_batches_concurrent_writes(opened: Opened, path: Path) -> None:
    """A thousand writes that have waited for another process are performed in their order."""
    store = opened()
    await store.apply(Put("first", b""))
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [
            asyncio.ensure_future(store.apply(Append("log", b"%d" % number, ttl=60)))
            for number in range(1000)
        ]
        await asyncio.sleep(0)  # each is requested
        other.rollback()
    await asyncio.gather(*writes)

    kept = [event.data for event in await store.read("log", limit=2000)]
    assert [b"%d" % number for number in range(1000)] == kept


async def test_number_of_waiting_writes_is_bounded(
    opened: Opened, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it writes fail at once, so that a file that is locked for long costs no memory."""
    monkeypatch.setattr("genmcp.stores.lanes._WAITING", 5)
    store = opened()
    await store.apply(Put("first", b""))
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [asyncio.ensure_future(store.apply(Put(f"{each}", b""))) for each in range(300)]
        await asyncio.sleep(0)  # each is requested, and the thread has taken some of them
        refused = [each for each in writes if each.done()]
        assert len(refused) >= 300 - 256 - 5
        for each in refused:
            with pytest.raises(StoreUnavailable, match="5 operations wait"):
                await each
        assert await store.get("first")
        other.rollback()

    await asyncio.gather(*(each for each in writes if each not in refused))
    await store.apply(Put("next", b""))


async def test_broken_file_is_unavailable(opened: Opened, path: Path) -> None:
    """Each operation, and a waiting follower, raises the fault of the file."""
    store, other = opened(), opened()
    followed = store.follow("log")
    waiting = asyncio.ensure_future(data(followed))
    await store.apply(Put("k", b"1"))
    with closing(sqlite3.connect(path)) as file:
        file.execute("DROP TABLE counts")

    with pytest.raises(StoreUnavailable, match="no such table"):
        await store.apply(Put("k", b"2"))
    with pytest.raises(StoreUnavailable, match="no such table"):
        await waiting
    await asyncio.to_thread(path.unlink)
    await asyncio.to_thread(path.mkdir)
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await other.get("k")


async def test_failed_write_does_not_affect_others(opened: Opened) -> None:
    """Of writes that share a transaction, each is accepted or rejected by itself."""
    store = opened()
    asked = [Put("a", b"", expect=0), Put("\ud800", b""), Put("c", b"", expect=7), Put("d", b"")]
    done = await asyncio.gather(*(store.apply(op) for op in asked), return_exceptions=True)

    assert [type(None), UnicodeEncodeError, Conflict, type(None)] == [type(it) for it in done]
    assert [await store.get(key) is not None for key in "acd"] == [True, False, True]


# Persistence


async def test_data_is_kept_when_the_file_is_opened_again(opened: Opened, path: Path) -> None:
    """Records, events and deliveries outlive the process; no version or id is reused."""
    store = opened()
    await store.apply(Put("gone", b""), Put("gone#k", b"1"), Append("gone", b"1", ttl=60))
    await store.apply(Put("gone", b""), Delete("gone"))
    await store.deliveries.put("a", "q")
    (first,) = await store.read("gone")
    await store.aclose()
    assert [path] == list(path.parent.iterdir())  # nothing is left beside it

    store = opened()
    await store.apply(Put("gone", b"", expect=0), Append("gone", b"2", ttl=60))
    assert await store.get("gone#k") == StoreEntry(b"1", 1)
    assert await store.get("gone") == StoreEntry(b"", 3)
    assert [event.data for event in await store.read("gone", first.id)] == [b"2"]
    assert await store.deliveries.claim(["q"], "n1", 30, 10) == [Delivery("a", "q")]


async def test_expired_entries_are_removed_by_writes(opened: Opened, path: Path) -> None:
    """The rows of logs are removed an hour later: until then followers learn of a gap."""
    clock = Clock()
    store = opened(clock=clock)
    for number in range(15):
        await store.apply(
            *(Put(f"{number}#{n}", b"", ttl=10) for n in range(10)),
            Append(f"{number}", b"", ttl=10),
        )
    ids = [event.id for event in await store.read("0")]

    def rows() -> list[int]:
        with closing(sqlite3.connect(path)) as file:
            tables = ("records", "events", "logs")
            return [file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    assert rows() == [150, 15, 15]
    clock.now = 11
    await store.apply()
    assert rows() == [0, 0, 15]
    assert await store.read("0", ids[0]) == []

    clock.now = 4000
    await store.apply()
    await store.apply()
    assert rows() == [0, 0, 0]
    with pytest.raises(LogTruncated):
        await store.read("0", ids[0])
    await store.apply(Append("0", b"new", ttl=10))
    with pytest.raises(LogTruncated):
        await store.read("0", ids[0])


async def test_expired_log_restarts_before_the_sweep(opened: Opened) -> None:
    """An expired event is not read although it was not removed yet."""
    clock = Clock()
    store = opened(clock=clock)
    await store.apply(Append("log", b"1", ttl=0.1))
    clock.now = 0.2
    await store.apply(Append("log", b"2", ttl=0.1))

    assert [event.data for event in await store.read("log")] == [b"2"]


async def test_idle_follower_keeps_its_position(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle follower gets no LogTruncated because rows of other logs were deleted."""
    clock = Clock()
    monkeypatch.setattr("genmcp.stores.following._REFRESH", 0.001)
    store = opened(clock=clock)
    async with aclosing(store.follow("mine")) as followed:
        waiting = asyncio.ensure_future(data(followed))
        for _ in range(3):
            await store.apply(Append("other", b"", ttl=10))
            clock.now += 5000
            await asyncio.sleep(0.02)  # it polls again, which is what this test is about
            await store.apply()
        await store.apply(Append("mine", b"1", ttl=10))
        assert await waiting == b"1"


async def test_store_ignores_cancelled_callers(opened: Opened, path: Path) -> None:
    """A cancelled caller, or one of a closed event loop, delays no other."""
    store = opened()

    async def request_and_leave() -> None:
        writing = asyncio.ensure_future(store.apply(Append("log", b"", ttl=60)))
        await asyncio.sleep(0)
        writing.cancel()

    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")  # until both have left
        await request_and_leave()
        await asyncio.to_thread(asyncio.run, request_and_leave())
        other.rollback()
    await store.apply(Append("log", b"", ttl=60))

    assert len(await store.read("log")) == 3


def modes(path: Path) -> set[int]:
    return {each.stat().st_mode & 0o777 for each in path.parent.iterdir()}


def test_store_is_for_its_owner(path: Path) -> None:
    """A new file is for its owner only. One that its group may open keeps its mode."""
    SQLiteStore(path)
    assert modes(path) == {0o600}
    path.chmod(0o640)
    SQLiteStore(path)
    assert modes(path) == {0o640}


async def test_store_closes_its_files_to_others(
    opened: Opened, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that any user may open contains requests and results: it is restricted, and logged."""
    await opened().apply(Put("k", b"1"))
    for each in path.parent.iterdir():
        each.chmod(0o644)
    opened()

    assert len(list(path.parent.iterdir())) == 3  # with -wal and -shm
    assert modes(path) == {0o600}
    assert str(path) in caplog.text


def test_file_of_another_program_keeps_its_mode(path: Path) -> None:
    """A file that is rejected is not changed in any way."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE mine (id)")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError):
        SQLiteStore(path)

    assert path.stat().st_mode & 0o777 == 0o644


async def test_store_cleans_up_while_idle(opened: Opened, path: Path) -> None:
    """After one write all expired entries are removed, however many, without further writes."""
    clock = Clock()
    store = opened(clock=clock)
    for number in range(4):
        await store.apply(
            *(Put(f"{number}#{n}", b"", ttl=10) for n in range(1000)),
            *(Append(f"{number}#{n % 50}", b"", ttl=10) for n in range(1000)),
        )
    clock.now = 11
    await store.apply()
    async with asyncio.timeout(BOUND):
        with closing(sqlite3.connect(path)) as file:
            left = "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM events)"
            while file.execute(left).fetchone()[0]:
                await asyncio.to_thread(time.sleep, 0.01)  # asking the store would be a request


def test_repr_names_the_file(path: Path) -> None:
    """For the log."""
    assert repr(SQLiteStore(path)) == f"<SQLiteStore: {str(path)!r}>"


# Construction


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.with_name("nowhere") / "store.db", "there is no folder '.*/nowhere'"),
        (lambda path: path.parent, "unable to open"),
        (lambda path: Path("/proc/store.db"), "Errno"),  # read-only for every user
    ],
)
def test_unusable_path_is_rejected(make: Callable[[Path], Path], message: str, path: Path) -> None:
    """The folder has to exist and to be writable, and the file to be a file."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        SQLiteStore(make(path))
    assert repr(str(make(path))) in str(caught.value)


def test_file_of_another_program_is_rejected(path: Path) -> None:
    """A file that is not a database, or not one of ours, is not changed."""
    path.write_text("a letter to my aunt, and rather a long one\n" * 100)
    with pytest.raises(ConfigurationError, match="not a database"):
        SQLiteStore(path)

    for application, whose in ((0, "another program"), (0x67656E6D, "another version of genmcp")):
        path.unlink()
        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE aunts (name TEXT)")
            file.execute(f"PRAGMA application_id={application}")
        with pytest.raises(ConfigurationError, match=whose):
            SQLiteStore(path)


async def test_labels_survive_a_restart(path: Path) -> None:
    """Labels are in the file, and are replaced by a process that did not write them."""
    async with aclosing(SQLiteStore(path)) as store:
        for number in range(3):
            await store.apply(Put(f"task:{number}", b"", labels=("state:queued", "owner:ann")))

    async with aclosing(SQLiteStore(path)) as store:
        await store.apply(Put("task:1", b"", labels=("state:working", "owner:ann")))
        await store.apply(Delete("task:2"))

        assert [each.key for each in await store.find("state:queued")] == ["task:0"]
        assert await store.count("owner:ann") == 2

    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT label, key FROM labels ORDER BY label, key").fetchall()
    assert rows == [
        ("owner:ann", "task:0"),
        ("owner:ann", "task:1"),
        ("state:queued", "task:0"),
        ("state:working", "task:1"),
    ]


async def test_file_that_may_outgrow_its_disk_is_a_problem(path: Path) -> None:
    """An operator learns of it before writes fail, with the remedy."""
    free = shutil.disk_usage(path.parent).free
    async with aclosing(SQLiteStore(path, max_bytes=10**6)) as store:
        assert await store.problems() == ()
    async with aclosing(SQLiteStore(path, max_bytes=2 * free)) as store:
        (problem,) = await store.problems()
    assert f"max_bytes={2 * free}" in problem


@pytest.mark.parametrize("option", ["max_bytes", "timeout"])
def test_option_out_of_range_is_rejected(option: str, path: Path) -> None:
    """A store without room, or without patience, is rejected at construction."""
    with pytest.raises(ConfigurationError, match=option):
        SQLiteStore(path, **{option: 0})  # type: ignore[arg-type]
    assert not path.exists()


@pytest.mark.parametrize("lock", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
async def test_locked_file_is_examined_later(lock: str, path: Path) -> None:
    """It is unavailable, in bounded time, and then turns out to be a file of another program."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE aunts (name TEXT)")
        other.execute(lock)
        store = SQLiteStore(path, timeout=0.05)
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.get("key")
    for operation in (store.get("key"), store.apply(Put("key", b""))):
        with pytest.raises(ConfigurationError, match="written by another program"):
            await operation
    await store.aclose()


def test_network_file_system_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite has no write-ahead log, the error states the required file system."""

    def elsewhere(*_: object, **__: object) -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    monkeypatch.setattr(file_module, "connect", elsewhere)
    with pytest.raises(ConfigurationError, match="local disk"):
        SQLiteStore(path)
