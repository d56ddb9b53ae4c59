"""Sessions of clients whose requests go to one replica after the other."""

from pathlib import Path

import pytest

from genmcp import Endpoint, Mux, Suite
from genmcp.stores import open_store
from tests.support.asgi import Client


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_session_that_was_ended_is_unknown_to_each_replica(
    kind: str, redis_url: str, tmp_path: Path
) -> None:
    """Also to a request that comes as soon as the client has the response to its DELETE."""
    url = redis_url if kind == "redis" else f"sqlite:///{tmp_path / 'sessions.db'}"
    stores = [open_store(url) for _ in range(2)]
    muxes = [Mux(Suite(name="test", version="1"), store=store, secret="s" * 32) for store in stores]
    first, second = (Endpoint(mux) for mux in muxes)
    statuses = []
    for _ in range(20):
        client = await Client.begin(first, "2025-11-25")
        known = await client.send(client.request("ping"))
        client.app = second
        there = await client.send(client.request("ping"))
        client.app = first
        await client.send(method="DELETE")
        client.app = second
        unknown = await client.send(client.request("ping"))
        statuses.append([known.status, there.status, unknown.status])

    assert statuses == [[200, 200, 404]] * 20
    for mux, store in zip(muxes, stores, strict=True):
        await mux.aclose()
        await store.aclose()
