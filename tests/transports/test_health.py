"""Liveness and readiness, mounted in an application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import ConfigurationError, Endpoint, Health, MemoryStore, Mux, Suite
from genmcp.errors import StoreUnavailable
from tests.support.asgi import until

SECRET = "a secret of at least 16 bytes"


class SlowStore(MemoryStore):
    """A store that holds reads back until they are released, and fails them if `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.released = asyncio.Event()
        self.error: Exception | None = None

    async def get(self, key: str) -> Any:
        self.reads += 1
        await self.released.wait()
        if self.error is not None:
            raise self.error
        return await super().get(key)


def suite() -> Suite:
    return Suite(name="test", version="1")


@asynccontextmanager
async def served(checks: Health, **paths: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Starlette(routes=checks.routes(**paths)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def test_health_responds_at_both_paths() -> None:
    """With JSON that no cache keeps; a slash at the end is accepted."""
    async with served(Health(Endpoint(suite()))) as http:
        for path in ("/health", "/ready", "/ready/"):
            response = await http.get(path)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})
            assert response.headers["cache-control"] == "no-store"


async def test_health_responds_to_head_and_get_only() -> None:
    """A probe may be either; anything else is a mistake."""
    async with served(Health(Endpoint(suite()))) as http:
        head = await http.head("/health")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == "15"
        wrong = await http.post("/health")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_health_paths_are_settings() -> None:
    """One of them may be left out; each may be mounted by itself."""
    health = Health(Endpoint(suite()))
    async with served(health, health="/livez", ready=None) as http:
        assert [(await http.get(path)).status_code for path in ("/livez", "/ready")] == [200, 404]
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/up", health.ready)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        assert (await http.get("/up/")).status_code == 200
    with pytest.raises(ConfigurationError, match="begins with a slash"):
        health.routes(health="livez")


async def test_ready_starts_the_work_on_stored_jobs(tmp_path: Path) -> None:
    """A balancer sends no request before that, so that no request could start it."""
    mux = Mux(suite(), store=f"sqlite:///{tmp_path}/test.db", secret=SECRET)
    endpoint = Endpoint(mux)
    health = Health(endpoint, cache=0)
    try:
        assert await health.problems() == {"worker": "starting"}
        await mux.tasks.worker.start()
        assert await health.problems() == {}
    finally:
        await endpoint.aclose()
        await mux.aclose()
    assert (await health.problems()).keys() == {"store", "worker"}


async def test_ready_names_the_worker_that_has_not_started(tmp_path: Path) -> None:
    """A process that only runs jobs starts them itself."""
    mux = Mux(suite(), store=f"sqlite:///{tmp_path}/test.db", secret=SECRET)
    assert await Health(mux).problems() == {"worker": "not started"}
    await mux.aclose()


async def test_ready_names_a_store_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """But not its error, which may contain an address or a password: that is logged."""
    store = SlowStore()
    store.error = StoreUnavailable("redis://user:password@10.0.0.1 is gone")
    store.released.set()
    async with served(Health(Endpoint(Mux(suite(), store=store, secret=SECRET)))) as http:
        response = await http.get("/ready")
        alive = await http.get("/health")

    assert response.status_code == 503
    problem = "StoreUnavailable; the log has the reason"
    assert response.json() == {"status": "unavailable", "problems": {"store": problem}}
    assert "10.0.0.1 is gone" in caplog.text
    assert alive.status_code == 200


async def test_ready_waits_for_the_store_within_a_bound() -> None:
    """A probe that hangs is of less use than one that fails."""
    store = SlowStore()
    health = Health(Mux(suite(), store=store, secret=SECRET), timeout=0.01)

    assert await health.problems() == {"store": "no response in 0.01 seconds"}


async def test_any_number_of_probes_cost_one_read() -> None:
    """Also if some of them disconnect meanwhile. The result is then valid for a while."""
    store = SlowStore()
    health = Health(Mux(suite(), store=store, secret=SECRET), cache=600)
    first, *others = [asyncio.create_task(health.problems()) for _ in range(50)]
    await until(lambda: store.reads)
    first.cancel()
    store.released.set()

    assert [await each for each in others] == [{}] * 49
    assert await health.problems() == {}
    assert store.reads == 1


async def test_draining_ends_readiness_at_once() -> None:
    """With any result that is remembered, it is still alive."""
    health = Health(Endpoint(suite()), cache=600)
    assert await health.problems() == {}
    health.drain()
    assert await health.problems() == {"process": "shutting down"}
    async with served(health) as http:
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/health")).status_code == 200


def test_health_checks_its_options() -> None:
    """A suite has no store of its own."""
    with pytest.raises(ConfigurationError, match="takes an Endpoint or a Mux"):
        Health(suite())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout must be positive"):
        Health(Mux(suite()), timeout=0)
