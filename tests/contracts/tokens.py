"""The contract of a token storage: compare-and-swap of records, and locks."""

import asyncio
import threading
from typing import Final

import pytest
from msgspec.structs import replace

from genmcp._core.auth.record import Record, RegisteredClient
from genmcp.client.auth.tokens import TokenStorage, TokensUnavailable
from tests.contracts.bench import BOUND

KEY: Final = "https://login.example.com https://mcp.example.com/mcp Parts agent"

RECORD: Final = Record(
    issuer="https://login.example.com",
    token_endpoint="https://login.example.com/token",
    resource="https://mcp.example.com/mcp",
    client=RegisteredClient(
        id="c-17", secret="s3cret-of-c-17", secret_expires=1.9e9, method="client_secret_basic"
    ),
    access_token="access-token-1",
    expires=1790000000.125,
    lifetime=3600,
    refresh_token="refresh-token-1",
    scopes=("parts:read", "parts:write"),
    dpop_key='{"kty": "EC", "d": "private-part"}',
)
"""A record with every kind of value."""

_SECRETS: Final = ("s3cret-of-c-17", "access-token-1", "refresh-token-1", "private-part")


def renewed(record: Record) -> Record:
    """Return *record* as it is after a renewal."""
    generation = record.generation + 1
    return replace(record, generation=generation, access_token=f"access-token-{generation}")


class TokensContract:
    """The contract of a `TokenStorage`.

    A subclass provides two pytest fixtures, each a new and empty storage for each test: `tokens`,
    and `impatient` with a lock timeout of 0.1 s.
    """

    async def test_record_is_returned_as_stored(self, tokens: TokenStorage) -> None:
        """Every field survives, and records under other keys are not affected."""
        assert await tokens.get(KEY) is None
        assert await tokens.swap(KEY, None, RECORD)

        assert await tokens.get(KEY) == RECORD
        for other in ("", "ä/../b" * 100, KEY.upper()):
            assert await tokens.get(other) is None
            bare = Record(issuer=other, token_endpoint="", client=RegisteredClient(id=""))
            assert await tokens.swap(other, None, bare)
            assert await tokens.get(other) == bare
        assert await tokens.get(KEY) == RECORD

    async def test_large_record_is_stored(self, tokens: TokenStorage) -> None:
        """Tokens with many claims have several KiB."""
        large = replace(RECORD, access_token="a" * 16_000)
        assert await tokens.swap(KEY, None, large)
        assert await tokens.get(KEY) == large

    async def test_stale_writer_changes_nothing(self, tokens: TokenStorage) -> None:
        """A client that has read an older generation neither replaces nor removes the newer."""
        second = renewed(RECORD)
        assert await tokens.swap(KEY, None, RECORD)
        assert await tokens.swap(KEY, RECORD, second)

        assert not await tokens.swap(KEY, RECORD, replace(RECORD, access_token="late"))
        assert not await tokens.swap(KEY, RECORD, None)
        assert not await tokens.swap(KEY, None, RECORD)
        assert await tokens.get(KEY) == second

    async def test_removed_record_stays_removed(self, tokens: TokenStorage) -> None:
        """A logout is not undone by a client that still has the record."""
        assert await tokens.swap(KEY, None, None)
        assert await tokens.swap(KEY, None, RECORD)
        assert await tokens.swap(KEY, RECORD, None)

        assert await tokens.get(KEY) is None
        assert not await tokens.swap(KEY, RECORD, renewed(RECORD))
        assert not await tokens.swap(KEY, RECORD, None)
        assert await tokens.get(KEY) is None

    async def test_login_after_removal_is_kept(self, tokens: TokenStorage) -> None:
        """Two logins may have the same generation, and are different records all the same."""
        again = replace(RECORD, access_token="of another login")
        assert await tokens.swap(KEY, None, RECORD)
        assert await tokens.swap(KEY, RECORD, None)
        assert await tokens.swap(KEY, None, again)

        assert not await tokens.swap(KEY, RECORD, None)
        assert await tokens.get(KEY) == again

    async def test_one_of_many_writers_succeeds(self, tokens: TokenStorage) -> None:
        """Of all that have read the same generation, exactly one replaces it."""
        assert await tokens.swap(KEY, None, RECORD)
        written = [replace(renewed(RECORD), access_token=f"{number}") for number in range(10)]
        results = await asyncio.gather(*(tokens.swap(KEY, RECORD, each) for each in written))

        assert results.count(True) == 1
        assert await tokens.get(KEY) == written[results.index(True)]

    async def test_lock_admits_one_at_a_time(self, tokens: TokenStorage) -> None:
        """The holder can read and write; all others wait, and proceed in the end."""
        assert await tokens.swap(KEY, None, RECORD)
        inside = 0

        async def renew() -> None:
            nonlocal inside
            async with tokens.lock(KEY):
                inside += 1
                assert inside == 1
                record = await tokens.get(KEY)
                assert record is not None
                await asyncio.sleep(0)
                assert await tokens.swap(KEY, record, renewed(record))
                inside -= 1

        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(renew() for _ in range(5)))
        found = await tokens.get(KEY)
        assert found is not None
        assert found.generation == 6

    async def test_lock_concerns_one_key(self, tokens: TokenStorage) -> None:
        """A login at one server does not hold up a renewal at another."""
        async with asyncio.timeout(BOUND), tokens.lock(KEY), tokens.lock("other"):
            pass

    async def test_lock_admits_one_thread_at_a_time(self, tokens: TokenStorage) -> None:
        """Clients in several event loops, such as SyncClients, exclude each other as well."""
        entered, left = threading.Event(), threading.Event()

        async def hold() -> None:
            async with tokens.lock(KEY):
                entered.set()
                await asyncio.to_thread(left.wait, BOUND)
                assert await tokens.swap(KEY, None, RECORD)

        thread = threading.Thread(target=lambda: asyncio.run(hold()))
        thread.start()
        try:
            await asyncio.to_thread(entered.wait, BOUND)
            asyncio.get_running_loop().call_later(0.05, left.set)
            async with asyncio.timeout(BOUND), tokens.lock(KEY):
                assert await tokens.get(KEY) == RECORD
        finally:
            left.set()
            await asyncio.to_thread(thread.join)

    async def test_lock_is_free_after_an_error(self, tokens: TokenStorage) -> None:
        """A failed or cancelled renewal lets the next client try."""

        async def hold() -> None:
            async with tokens.lock(KEY):
                held.set()
                await asyncio.Event().wait()

        held = asyncio.Event()
        async with asyncio.timeout(BOUND):
            with pytest.raises(RuntimeError):
                async with tokens.lock(KEY):
                    raise RuntimeError
            holder = asyncio.create_task(hold())
            await held.wait()
            waiter = asyncio.create_task(hold())
            await asyncio.sleep(0.01)
            for task in (waiter, holder):
                task.cancel()
                await asyncio.wait([task])
            async with tokens.lock(KEY):
                pass

    async def test_wait_for_a_lock_is_bounded(self, impatient: TokenStorage) -> None:
        """The error names the setting; the lock is usable afterwards."""
        async with asyncio.timeout(BOUND):
            async with impatient.lock(KEY):
                with pytest.raises(TokensUnavailable, match="lock_timeout"):
                    async with impatient.lock(KEY):
                        raise AssertionError("two holders")
            async with impatient.lock(KEY):
                pass

    async def test_no_secret_is_shown(self, tokens: TokenStorage) -> None:
        """Neither a record nor its storage shows a token, a secret or a key."""
        assert await tokens.swap(KEY, None, RECORD)
        shown = f"{await tokens.get(KEY)!r} {tokens!r} {tokens}"

        assert "c-17" in shown
        assert [each for each in _SECRETS if each in shown] == []
