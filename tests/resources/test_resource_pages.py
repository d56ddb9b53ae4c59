"""Which resource a URI is, and all of them in pages."""

import re
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.channel import Channel
from genmcp.component_route import ComponentRoute
from genmcp.errors import ContractError, InvalidParams
from genmcp.protocol.content import ResourceDefinition
from genmcp.resources.resource import Resource, ResourceRepo, ResourceRoute
from genmcp.suite.collection import RESOURCES, Collection
from tests.resources.asking import page_of, resources, uris

TEMPLATES = "resources/templates/list"


class Numbers(ResourceRepo):
    """Resources called by numbers, in pages of a size of their own."""

    name = "number"

    def __init__(self, prefix: str, count: int, size: int | None = None, **more: Any) -> None:
        self.prefix = prefix
        self.count = count
        self.size = size or count or 1
        self.cursors: list[Any] = []
        for key, value in more.items():
            setattr(self, key, value)

    async def list(self, cursor: Any, channel: Channel) -> Any:
        self.cursors.append(cursor)
        start = cursor or 0
        end = min(start + self.size, self.count)
        page = [ResourceDefinition(f"{self.prefix}{n}", str(n)) for n in range(start, end)]
        return page, end if end < self.count else None

    async def read(self, key: str, channel: Channel) -> Any:
        return key


class Everything(ResourceRepo):
    """All resources with a prefix."""

    name = "everything"

    def __init__(self, prefix: str, **more: Any) -> None:
        self.template = prefix + "{+path}"
        for key, value in more.items():
            setattr(self, key, value)

    async def read(self, key: Any, channel: Channel) -> Any:
        return 1


def found(held: Collection, uri: str) -> Any:
    route = held.find(uri)
    return route and route.provider


async def test_find_returns_the_first_declared_route() -> None:
    """Not the longest prefix: the first one; a resource is found where it stands among them."""
    first, long, short, late = (
        Resource("a://x", 1),
        Numbers("a://b/", 1),
        Numbers("a://", 1),
        Resource("a://b", 2),
    )
    everything = Everything("z:")
    held = resources(first, long, short, late, Resource("a://x", 3), everything)

    assert first is found(held, "a://x")
    assert long is found(held, "a://b/c")
    assert short is found(held, "a://b")
    assert short is found(held, "a://")
    assert everything is found(held, "z:")
    assert [found(held, "a:/"), found(held, "")] == [None, None]
    assert repr(held) == "<Collection of 4 resources>"


@given(st.lists(st.text("ab*", min_size=1, max_size=3), max_size=8), st.text("ab", max_size=4))
def test_find_agrees_with_a_scan(patterns: list[str], rest: str) -> None:
    """Prefixes and URIs may overlap: the first that fits is found."""
    providers = [
        Everything(f"a:{each.rstrip('*')}") if each.endswith("*") else Resource(f"a:{each}", 1)
        for each in patterns
    ]
    uri = f"a:{rest}"

    def fits(each: Resource | Everything) -> bool:
        if isinstance(each, Resource):
            return uri == each.uri
        return uri.startswith(str(each.template).removesuffix("{+path}"))

    expected = next(filter(fits, providers), None)
    assert expected is found(resources(*providers), uri)


async def test_resources_are_listed_in_pages_of_a_size() -> None:
    """Resources and repositories in declared order; a repository's own cursor ends a page."""
    held = resources(
        Resource("a:1", 1),
        Numbers("b:", 3),
        Everything("hidden:"),
        Numbers("c:", 0),
        Resource("a:2", 1),
        Numbers("d:", 5, size=2),
        Resource("a:3", 1),
    )

    assert await uris(held, 3) == [
        ["a:1", "b:0", "b:1"],
        ["b:2", "a:2", "d:0"],
        ["d:1"],
        ["d:2", "d:3"],
        ["d:4", "a:3"],
    ]
    assert await uris(held, 100) == [
        ["a:1", "b:0", "b:1", "b:2", "a:2", "d:0", "d:1"],
        ["d:2", "d:3"],
        ["d:4", "a:3"],
    ]
    assert await uris(resources(), 3) == [[]]


async def test_last_page_of_resources_is_not_empty() -> None:
    """A page that is full by the last resource is the last page."""
    held = resources(*(Resource(f"a:{number}", 1) for number in range(4)), Everything("b:"))

    assert await uris(held, 2) == [["a:0", "a:1"], ["a:2", "a:3"]]


async def test_resource_is_listed_once_by_its_first_owner() -> None:
    """Of two with one URI the first one lists it; unreadable ones are listed as well."""

    class Links(Numbers):
        async def list(self, cursor: Any, channel: Channel) -> Any:
            again = ["n:0", "link:1", "link:1", "https://test/", "a:1"]
            return [ResourceDefinition(uri, "again") for uri in again]

    held = resources(
        Resource("n:1", 1),
        Numbers("n:", 3),
        Numbers("n:2", 3),
        Resource("n:2", 1),
        Links("link:", 0),
        Resource("a:1", 1),
    )

    assert await uris(held, 50) == [["n:1", "n:0", "n:2", "link:1", "https://test/", "a:1"]]


async def test_page_of_resources_costs_its_own_size() -> None:
    """Of ten thousand in one repository as much is touched as of a hundred."""
    ten_thousand = [ResourceDefinition(f"n:{number}", str(number)) for number in range(10_000)]
    touched = []

    class Prepared(Numbers):
        async def list(self, cursor: Any, channel: Channel) -> Any:
            return ten_thousand[: self.count]

    class Counting(Collection):
        def find(self, key: str) -> ComponentRoute | None:
            touched.append(key)
            return super().find(key)

    for count in (100, 10_000):
        held = Counting(RESOURCES, [ResourceRoute.of(Prepared("n:", count))])
        touched.clear()
        page = await page_of(held, 50)
        assert ten_thousand[:50] == page.resources
        assert len(touched) == 50


async def test_find_does_not_scan() -> None:
    """A hundred thousand lookups among ten thousand resources are fast."""
    held = resources(*(Resource(f"n:{number}", 1) for number in range(10_000)))
    began = perf_counter()
    for _ in range(100_000):
        held.find("n:9999")

    assert perf_counter() - began < 2


async def test_fixed_page_of_resources_is_made_once() -> None:
    """A page without repositories is one object; other pages are not cached."""
    still = resources(*(Resource(f"a:{number}", 1) for number in range(4)))
    first = await page_of(still, 2)
    second = await page_of(still, 2, first.next_cursor)
    numbers = Numbers("b:", 1)
    moving = resources(numbers)

    assert first is await page_of(still, 2)
    assert second is await page_of(still, 2, first.next_cursor)
    assert first is not await page_of(still, 3)
    assert await page_of(moving, 2) == await page_of(moving, 2)
    assert numbers.cursors == [None, None]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "[]", "{}", "null", "5", '["unknown:*"]', '["b:*",null,-1]', '["b:*",null,"x"]',
     '["b:*"', "[" * 5000, "\ud800", "a:1", "b:*"],
)  # fmt: skip
async def test_invalid_cursor_of_resources_is_rejected(cursor: str) -> None:
    """2026-07-28, server/utilities, "Pagination": invalid params."""
    held = resources(Resource("a:1", 1), Numbers("b:", 3))

    with pytest.raises(InvalidParams, match="^Invalid cursor: " + re.escape(cursor)):
        await page_of(held, 2, cursor)
    with pytest.raises(InvalidParams, match=r"^Invalid cursor"):
        await page_of(held, 2, cursor, method=TEMPLATES)


@pytest.mark.parametrize("cursor", [0, "", "x/é", {"after": [1, None]}, [True], False])
async def test_repo_cursor_may_be_any_json(cursor: Any) -> None:
    """The cursor of a repository is passed back unchanged; only None ends its list."""
    given = []

    class Repo(Numbers):
        async def list(self, cursor_: Any, channel: Channel) -> Any:
            given.append(cursor_)
            return [], None if len(given) > 1 else cursor

    assert await uris(resources(Repo("a:", 1)), 5) == [[], []]
    assert [None, cursor] == given


async def test_repository_cursor_that_is_no_json_is_an_error() -> None:
    """The error is raised when the page is made, not when the cursor is used."""

    class Repo(Numbers):
        async def list(self, cursor: Any, channel: Channel) -> Any:
            return [], object()

    with pytest.raises(ContractError, match=r"Repo\.list .* returned object: as a cursor, it is"):
        await page_of(resources(Repo("a:", 1)), 5)


async def test_page_of_resources_has_the_shortest_ttl() -> None:
    """Public only if all are, the least time of all; templates by those that have one."""
    held = resources(
        Resource("a:1", 1, cache_ttl=60, cache_scope="public"),
        Everything("w:", cache_ttl=30, cache_scope="public"),
        Numbers("b:", 3, cache_ttl=10),
    )
    page = await page_of(held, 2)
    empty = await page_of(resources(), 2)

    assert (page.ttl_ms, page.cache_scope) == (10_000, "private")
    templates = await page_of(held, 2, method=TEMPLATES)
    assert (templates.ttl_ms, templates.cache_scope) == (30_000, "public")
    assert (empty.ttl_ms, empty.cache_scope) == (0, "public")


async def test_resources_list_templates_in_pages() -> None:
    """Each template once, the first that has it; those without one are left out."""
    providers = [Numbers(f"n{number}:", 1, template=f"n{number}:{{a}}") for number in range(3)]
    twice = Numbers("n1:0", 1, template="n1:{a}")
    held = resources(twice, *providers, Numbers("x:", 1))
    pages = [await page_of(held, 2, method=TEMPLATES)]
    while pages[-1].next_cursor is not None:
        pages.append(await page_of(held, 2, pages[-1].next_cursor, method=TEMPLATES))

    assert [[each.uri_template for each in page.resource_templates] for page in pages] == [
        ["n1:{a}", "n0:{a}"],
        ["n2:{a}"],
    ]
    assert pages[0] is await page_of(held, 2, method=TEMPLATES)
    completer = held.completer("n1:{a}", None)
    assert completer is not None
    assert list(completer.names or ()) == ["a"]
    assert held.completer("x:", None) is None
