"""The contract of a token storage: compare-and-swap of records, and locks."""

import asyncio
import threading
from typing import Final

import pytest
from msgspec.structs import replace

from genmcp.client.auth.tokens import TokenStorage, TokensUnavailable
from genmcp.core.auth.record import Record, RegisteredClient
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
    renewals = record.renewals + 1
    return replace(record, renewals=renewals, access_token=f"access-token-{renewals}")


async def save(tokens: TokenStorage, record: Record | None, key: str = KEY) -> None:
    """Store *record*, as a flow does."""
    async with tokens.lock(key):
        await tokens.save(key, record)


class TokensContract:
    """The contract of a `TokenStorage`.

    A subclass provides a pytest fixture `tokens`, a new and empty storage for each test.
    """

    async def test_record_is_returned_as_stored(self, tokens: TokenStorage) -> None:
        """Every field survives, and records under other keys are not affected."""
        assert await tokens.load(KEY) is None
        await save(tokens, RECORD)

        assert await tokens.load(KEY) == RECORD
        for other in ("", "ä/../b" * 100, KEY.upper()):
            assert await tokens.load(other) is None
            bare = Record(issuer=other, token_endpoint="", client=RegisteredClient(id=""))
            await save(tokens, bare, other)
            assert await tokens.load(other) == bare
        assert await tokens.load(KEY) == RECORD

    async def test_large_record_is_stored(self, tokens: TokenStorage) -> None:
        """Tokens with many claims have several KiB."""
        large = replace(RECORD, access_token="a" * 16_000)
        await save(tokens, large)

        assert await tokens.load(KEY) == large

    async def test_record_is_replaced_and_removed(self, tokens: TokenStorage) -> None:
        """A renewal, and a logout, which may be repeated."""
        await save(tokens, None)
        await save(tokens, RECORD)
        await save(tokens, renewed(RECORD))
        assert await tokens.load(KEY) == renewed(RECORD)

        await save(tokens, None)
        assert await tokens.load(KEY) is None
        await save(tokens, None)
        assert await tokens.load(KEY) is None

    async def test_lock_admits_one_at_a_time(self, tokens: TokenStorage) -> None:
        """The holder can read and write; all others wait, and no write is lost."""
        await save(tokens, RECORD)
        inside = 0

        async def renew() -> None:
            nonlocal inside
            async with tokens.lock(KEY):
                inside += 1
                assert inside == 1
                record = await tokens.load(KEY)
                assert record is not None
                await asyncio.sleep(0)
                await tokens.save(KEY, renewed(record))
                inside -= 1

        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(renew() for _ in range(5)))
        found = await tokens.load(KEY)
        assert found is not None
        assert found.renewals == 5

    async def test_record_is_read_while_it_is_locked(self, tokens: TokenStorage) -> None:
        """Requests use the present token while another one is fetched."""
        await save(tokens, RECORD)
        async with asyncio.timeout(BOUND), tokens.lock(KEY):
            assert await tokens.load(KEY) == RECORD

    async def test_lock_concerns_one_key(self, tokens: TokenStorage) -> None:
        """A login at one server does not hold up a renewal at another."""
        async with asyncio.timeout(BOUND), tokens.lock(KEY), tokens.lock("other"):
            pass

    async def test_lock_admits_one_thread_at_a_time(self, tokens: TokenStorage) -> None:
        """Clients in several event loops, such as SyncClients, exclude each other as well."""
        entered, released = threading.Event(), threading.Event()

        async def hold() -> None:
            async with tokens.lock(KEY):
                entered.set()
                await asyncio.to_thread(released.wait, BOUND)
                await tokens.save(KEY, RECORD)

        thread = threading.Thread(target=lambda: asyncio.run(hold()))
        thread.start()
        try:
            await asyncio.to_thread(entered.wait, BOUND)
            asyncio.get_running_loop().call_later(0.05, released.set)
            async with asyncio.timeout(BOUND), tokens.lock(KEY):
                assert await tokens.load(KEY) == RECORD
        finally:
            released.set()
            await asyncio.to_thread(thread.join)

    async def test_lock_is_free_after_an_error(self, tokens: TokenStorage) -> None:
        """A failed or cancelled renewal is no obstacle for the next client."""

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

    async def test_wait_for_a_lock_is_bounded(
        self, tokens: TokenStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lock is usable afterwards."""
        monkeypatch.setattr(type(tokens), "lock_timeout", 0.1)
        async with asyncio.timeout(BOUND):
            async with tokens.lock(KEY):
                with pytest.raises(TokensUnavailable, match="try again"):
                    async with tokens.lock(KEY):
                        raise AssertionError("two holders")
            async with tokens.lock(KEY):
                pass

    async def test_no_secret_is_shown(self, tokens: TokenStorage) -> None:
        """Neither a record nor its storage shows a token, a secret or a key."""
        await save(tokens, RECORD)
        shown = f"{await tokens.load(KEY)!r} {tokens!r} {tokens}"

        assert "c-17" in shown
        assert [each for each in _SECRETS if each in shown] == []
