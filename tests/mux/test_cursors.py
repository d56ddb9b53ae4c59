"""Cursors as clients see them: sealed, and good for one list, one principal and some time."""

from typing import Any

import pytest
from msgspec.structs import replace

from genmcp import Endpoint, Mux, PromptTemplate, Suite, tool
from genmcp.channel import Channel
from genmcp.protocol.value import PaginatedResult
from genmcp.stores.store import Put
from genmcp.wire import encoder
from genmcp.wire.encoder import Encoder
from tests.support.asgi import ALL, Client
from tests.support.clock import Clock


@tool
def first() -> str:
    """Is first."""
    return "1"


@tool
def second() -> str:
    """Is second."""
    return "2"


class Ada:
    """A user of the host application."""

    is_authenticated = True
    identity = "ada"


def suite_of(**options: Any) -> Suite:
    prompts = [PromptTemplate(name=name, messages=name) for name in "ab"]
    tools = [first, second]
    return Suite(name="test", version="1", tools=tools, prompts=prompts, page_size=1, **options)


async def page(client: Client, cursor: str | None = None, method: str = "tools/list") -> Any:
    """Return the response to a list request: its result or its error."""
    client.check = lambda message: None  # type: ignore[method-assign]
    params = {} if cursor is None else {"cursor": cursor}
    answer = (await client.send(client.request(method, params))).json
    return answer.get("result") or answer["error"]


@pytest.mark.parametrize("version", ALL)
async def test_cursor_leads_to_the_next_page(version: str) -> None:
    """Any replica takes it; it shows nothing of the server's own, and differs each time."""
    muxes = [Mux(suite_of(), secret="a secret of many bytes") for _ in range(2)]
    client = await Client.begin(Endpoint(muxes[0]), version)

    one, again = await page(client), await page(client)
    client.app = Endpoint(muxes[1])
    two = await page(client, one["nextCursor"])

    assert [each["tools"][0]["name"] for each in (one, two)] == ["first", "second"]
    assert one["nextCursor"] != again["nextCursor"]
    assert "second" not in one["nextCursor"] and "nextCursor" not in two
    assert {**one, "nextCursor": ""} == {**again, "nextCursor": ""}


@pytest.mark.parametrize("cursor", ["", "x", "g1" + "A" * 80, '["second"]'])
async def test_cursor_that_was_not_given_out_is_refused(cursor: str) -> None:
    """Nonsense and forgeries are -32602, and not repeated."""
    error = await page(Client(Endpoint(suite_of())), cursor)

    assert (error["code"], error["message"]) == (-32602, "Invalid cursor")


async def test_cursor_is_bound_to_its_list_and_its_principal() -> None:
    """It leads nowhere in another list, for another principal, or at another audience."""
    suite = suite_of()
    endpoint = Endpoint(Mux(suite, secret="a secret of many bytes"))
    elsewhere = Endpoint(Mux(suite, secret="a secret of many bytes", audience="other"))
    cursor = (await page(Client(endpoint)))["nextCursor"]

    refused = [
        await page(Client(endpoint), cursor, "prompts/list"),
        await page(Client(endpoint, user=Ada()), cursor),
        await page(Client(elsewhere), cursor),
    ]

    assert [each["message"] for each in refused] == ["Invalid cursor"] * 3


@pytest.mark.parametrize("version", ALL)
async def test_pages_that_everybody_may_keep_are_encoded_once(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, with a cursor or without, and however often they are listed."""
    tools = [first, second]
    for each in tools:
        monkeypatch.setattr(each.__genmcp_tool__, "cache_scope", "public", raising=False)  # type: ignore[attr-defined]
    client = await Client.begin(Endpoint(suite_of()), version)
    encoded: list[object] = []

    class Json:
        def encode(self, value: Any) -> bytes:
            encoded.append(value)
            return _json.encode(value)

    _json = encoder._json
    monkeypatch.setattr(encoder, "_json", Json())

    for _ in range(3):
        found = await page(client)
        await page(client, found["nextCursor"])

    pages = [each for each in encoded if not isinstance(each, str)]
    assert len(pages) == 2


async def test_pages_past_a_bound_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of remembered pages is bounded."""
    for each in (first, second):
        monkeypatch.setattr(each.__genmcp_tool__, "cache_scope", "public", raising=False)  # type: ignore[attr-defined]
    mux = Mux(suite_of())
    mux.encoder = Encoder(mux.server.info, cache_bytes=1)
    client = Client(Endpoint(mux))

    found = await page(client)
    rest = await page(client, found["nextCursor"])

    assert rest["tools"][0]["name"] == "second"
    assert len(mux.encoder._cache) == 1


async def test_server_gets_back_the_cursor_it_gave() -> None:
    """Any text."""
    asked: list[str | None] = []

    class Own(Suite):
        async def listed(
            self, method: str, cursor: str | None, channel: Channel
        ) -> PaginatedResult:
            asked.append(cursor)
            found = await super().listed(method, None, channel)
            return replace(found, next_cursor='a "cursor" é \ud800')

    client = Client(Endpoint(Own(name="test", version="1", tools=[first])))
    await page(client, (await page(client))["nextCursor"])

    assert asked == [None, 'a "cursor" é \ud800']


async def test_cursor_expires_by_the_clock_of_the_mux() -> None:
    """After an hour."""
    clock = Clock(1000.0)
    mux = Mux(suite_of(), clock=clock)
    client = await Client.begin(Endpoint(mux), "2026-07-28")
    cursor = (await page(client))["nextCursor"]

    clock.now += 3599
    before = await page(client, cursor)
    clock.now += 2
    after = await page(client, cursor)

    assert before["tools"][0]["name"] == "second"
    assert after["message"] == "Invalid cursor"


async def test_store_of_the_mux_has_its_clock() -> None:
    """So that the records of tasks expire by it, too."""
    clock = Clock(1000.0)
    mux = Mux(suite_of(), clock=clock)

    await mux.store.apply(Put("key", b"", ttl=60.0))
    clock.now += 59
    assert await mux.store.get("key") is not None
    clock.now += 2
    assert await mux.store.get("key") is None
