"""Renewals that hang: calls time out and are cancelled, and a new refresh token is not lost."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp import Client
from genmcp.client.auth import MemoryTokens, OAuth, flows
from genmcp.client.auth.asking import AskFunction
from genmcp.client.auth.identities import Workload
from genmcp.client.errors import ClientError, RequestTimeout
from genmcp.core.auth.record import Record, record_key
from tests.client.auth.logins import Place, guarded_place
from tests.client.scripted import Asked, served
from tests.contracts.tokens import save
from tests.support.oauth.server import OAuthServer

BOUND = 10.0  # seconds in which what must end at once has ended


async def error_of(work: Any) -> BaseException | None:
    """Return the error with which *work* ends in time."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=BOUND)
    assert done, "it still runs"
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def test_call_ends_while_an_assertion_is_awaited() -> None:
    """By its own timeout, and by a cancellation: the user's function may take any time."""
    platform, reached, hangs = OAuthServer("https://platform.test/k8s"), asyncio.Event(), False
    async with guarded_place() as place:
        place.issuer.trust(platform.url, platform.jwks)
        place.issuer.faults.tokens = {"expires_in": 1e-3}

        async def assertion() -> str:
            if hangs:
                reached.set()
                await asyncio.Event().wait()
            return platform.id_token("system:pod:reports", place.issuer.url)

        async with Client(place.url, auth=Workload(assertion, place.issuer.url)) as client:
            await client.tools()
            hangs = True
            assert isinstance(await error_of(client.call("whoami", timeout=0.1)), RequestTimeout)
            reached.clear()
            calling = asyncio.create_task(client.call("whoami"))
            await reached.wait()
            calling.cancel()
            assert isinstance(await error_of(calling), asyncio.CancelledError)
            hangs = False
            assert (await client.call("whoami")).data == "nobody"


class SlowEndpoint:
    """A token endpoint, in a thread, that answers when the test wants it: new tokens."""

    def __init__(self) -> None:
        self._reached, self.release = threading.Event(), threading.Event()

    async def reached(self) -> None:
        """Wait for a request."""
        assert await asyncio.to_thread(self._reached.wait, BOUND)

    async def __call__(self, asked: Asked) -> None:
        self._reached.set()
        await asyncio.to_thread(self.release.wait, 3 * BOUND)
        tokens = {"access_token": "new", "token_type": "Bearer", "refresh_token": "rotated"}
        await asked.reply(200, tokens)


class SlowPlace:
    """A client that is logged in, and whose next renewal hangs."""

    def __init__(self, place: Place, auth: OAuth, client: Client, endpoint: SlowEndpoint) -> None:
        self.place, self.auth, self.client, self.endpoint = place, auth, client, endpoint

    async def record(self) -> Record:
        record = await self.auth.tokens.load(record_key(self.place.url, self.auth.name))
        assert record is not None
        return record

    async def refuse_token(self) -> None:
        """Let the server refuse the token, so that the next call renews it after a 401."""
        self.place.refused.add((await self.record()).access_token or "")

    async def has_rotated(self) -> bool:
        return (await self.record()).refresh_token == "rotated"


@asynccontextmanager
async def slow_place(ask: AskFunction | None = None, **tokens: Any) -> AsyncIterator[SlowPlace]:
    """Log in, by *ask* if it is given; *tokens* replaces members of the token response."""
    endpoint = SlowEndpoint()
    async with guarded_place() as place, served(endpoint) as url:
        place.issuer.faults.tokens = tokens
        auth = OAuth("Parts agent", ask=ask or place.browse, tokens=MemoryTokens())
        async with Client(place.url, auth=auth) as client:
            await client.tools()
            it = SlowPlace(place, auth, client, endpoint)
            record = replace(await it.record(), token_endpoint=f"{url}/token")
            await save(auth.tokens, record, record_key(place.url, auth.name))
            try:
                yield it
            finally:
                endpoint.release.set()


@pytest.mark.parametrize("expired", [True, False])
async def test_timeout_of_a_call_ends_a_renewal_that_hangs(expired: bool) -> None:
    """Also after a 401: only the time in which a person is asked does not count."""
    tokens: dict[str, Any] = {"expires_in": 1e-3} if expired else {}
    async with slow_place(**tokens) as it:
        if not expired:
            await it.refuse_token()
        assert isinstance(await error_of(it.client.call("whoami", timeout=0.1)), RequestTimeout)


async def test_renewal_goes_on_after_its_call_was_cancelled() -> None:
    """The server may have replaced the refresh token: without the new one, a login is needed."""
    async with slow_place() as it:
        await it.refuse_token()
        calling = asyncio.create_task(it.client.call("whoami"))
        await it.endpoint.reached()
        calling.cancel()
        assert isinstance(await error_of(calling), asyncio.CancelledError)
        assert not await it.has_rotated()
        it.endpoint.release.set()
        tokens = it.auth.tokens
        async with asyncio.timeout(BOUND), tokens.lock(record_key(it.place.url, it.auth.name)):
            assert await it.has_rotated()


async def test_closing_a_client_lets_a_renewal_end() -> None:
    """A program that gives up a call and ends keeps its login."""
    async with slow_place() as it:
        await it.refuse_token()
        calling = asyncio.create_task(it.client.call("whoami"))
        await it.endpoint.reached()
        calling.cancel()
        await error_of(calling)
        closing = asyncio.create_task(it.client.aclose())
        await asyncio.sleep(0)
        it.endpoint.release.set()
        await closing
        assert await it.has_rotated()


async def test_renewal_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the lock of the record, such as in a storage that hangs."""
    monkeypatch.setattr(flows, "_LOCKED_TIMEOUT", 0.05)
    async with slow_place() as it:
        await it.refuse_token()
        error = await error_of(it.client.call("whoami"))
        assert isinstance(error, ClientError)
        assert "was not renewed and stored within 0.05 s" in str(error)


async def test_timeouts_are_paused_only_while_a_person_is_asked() -> None:
    """Before and after that, the authorization server must answer in time."""
    asked, release, endpoint = asyncio.Event(), asyncio.Event(), SlowEndpoint()
    async with guarded_place() as place, served(endpoint) as url:
        place.issuer.faults.metadata = {"token_endpoint": f"{url}/token"}

        async def ask(url: str) -> str:
            asked.set()
            await release.wait()
            return await place.browse(url)

        client = Client(place.url, auth=OAuth("Parts agent", ask=ask))
        opening = asyncio.create_task(client.open())
        await asked.wait()
        connection = client._connection
        later = asyncio.get_running_loop().time() + 1e6
        assert connection._machine.check_timeouts(later) == []
        release.set()
        await endpoint.reached()
        assert connection._machine.check_timeouts(later) != []
        opening.cancel()
        await error_of(opening)
        endpoint.release.set()


async def test_renewal_times_out_while_another_server_asks() -> None:
    """One `OAuth` for two servers: this call does not wait for the person."""
    asked = asyncio.Event()

    async def ask(url: str) -> str:
        if url.startswith(other.issuer.url):
            asked.set()
            await asyncio.Event().wait()
        return await other.browse(url)

    async with guarded_place() as other, slow_place(ask) as it:
        opening = asyncio.create_task(Client(other.url, auth=it.auth).open())
        await asked.wait()
        await it.refuse_token()
        error = await error_of(it.client.call("whoami", timeout=0.1))
        opening.cancel()
        await error_of(opening)

    assert isinstance(error, RequestTimeout)
