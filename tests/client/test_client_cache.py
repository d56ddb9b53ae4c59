"""The client's cache, and its invalidation."""

from typing import Any

import pytest

from genmcp.client.cache import ResultCache
from genmcp.protocol.content import ResourceContents
from genmcp.protocol.params import NotificationParams
from genmcp.protocol.resources import ReadResourceResult, ResourceUpdatedNotificationParams
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import CacheScope
from tests.support.clock import Clock

NOTHING = NotificationParams()


def tools(ttl_ms: int = 1000, scope: CacheScope = "private") -> ListToolsResult:
    return ListToolsResult(tools=[], ttl_ms=ttl_ms, cache_scope=scope)


def text(length: int) -> ReadResourceResult:
    contents = [ResourceContents(uri="a:", text="a" * length)]
    return ReadResourceResult(contents=contents, ttl_ms=1000, cache_scope="private")


def filled(*what: tuple[str, str], entries: int = 10) -> ResultCache:
    cache = ResultCache(entries, Clock(100.0))
    for method, key in what:
        cache.put(method, key, tools(), cache.generation)
    return cache


@pytest.mark.parametrize("scope", ["public", "private"])
def test_cache_gives_a_result_until_its_time_is_over(scope: CacheScope) -> None:
    """A result is fresh while now < received + ttlMs, whatever its scope."""
    clock = Clock(100.0)
    cache = ResultCache(10, clock)
    result = tools(scope=scope)
    cache.put("tools/list", "", result, cache.generation)
    clock.now += 0.999
    assert cache.get("tools/list") == result
    clock.now += 0.001
    assert cache.get("tools/list") is None
    clock.now -= 1
    assert cache.get("tools/list") is None


@pytest.mark.parametrize("ttl", [0, -5])
def test_cache_does_not_keep_what_is_stale_at_once(ttl: int) -> None:
    """A ttlMs of 0 is stale immediately, and a negative one counts as 0."""
    cache = ResultCache(10, Clock(100.0))
    cache.put("tools/list", "", tools(ttl), cache.generation)
    assert cache.get("tools/list") is None


def test_cache_of_no_entries_keeps_nothing() -> None:
    """With 0 entries there is no cache."""
    cache = filled(("tools/list", ""), entries=0)
    assert cache.get("tools/list") is None


def test_cache_forgets_what_was_used_longest_ago() -> None:
    """Past its bound the entry used last longest ago goes."""
    cache = filled(("tools/list", "a"), ("tools/list", "b"), entries=2)
    cache.get("tools/list", "a")
    cache.put("tools/list", "c", tools(), cache.generation)
    assert cache.get("tools/list", "a")
    assert not cache.get("tools/list", "b")
    assert cache.get("tools/list", "c")


def test_cache_holds_a_bounded_number_of_bytes() -> None:
    """16 MiB in all: a server, or the clients of a hub, cannot fill the memory by results."""
    cache = ResultCache(256, Clock(100.0))
    for number in range(30):
        cache.put("resources/read", f"a:{number}", text(1024 * 1024), cache.generation)
    found = [each for each in range(30) if cache.get("resources/read", f"a:{each}")]
    assert found == [*range(15, 30)]


def test_cache_counts_only_the_results_that_it_holds() -> None:
    """Those that were replaced, have expired or were discarded make room for others."""
    clock = Clock(100.0)
    cache = ResultCache(256, clock)
    cache.put("tools/list", "", tools(ttl_ms=1_000_000), cache.generation)
    for number in range(40):
        cache.put("resources/read", "replaced", text(1024 * 1024), cache.generation)
        cache.put("resources/read", f"stale:{number}", text(1024 * 1024), cache.generation)
        clock.now += 1
        assert cache.get("resources/read", f"stale:{number}") is None
        cache.put("prompts/list", "", text(1024 * 1024), cache.generation)
        cache.discard("prompts/list")
    assert cache.get("tools/list")


def test_cache_does_not_keep_a_very_long_result() -> None:
    """Above a tenth of all bytes; an earlier result, which is older than it, goes as well."""
    cache = filled(("resources/read", "a:"), ("tools/list", ""))
    cache.put("resources/read", "a:", text(2 * 1024 * 1024), cache.generation)
    assert cache.get("resources/read", "a:") is None
    assert cache.get("tools/list")


@pytest.mark.parametrize(
    ("method", "gone"),
    [
        ("notifications/tools/list_changed", {"tools/list"}),
        ("notifications/prompts/list_changed", {"prompts/list"}),
        (
            "notifications/resources/list_changed",
            {"resources/list", "resources/templates/list"},
        ),
        ("notifications/message", set[str]()),
    ],
)
def test_cache_is_emptied_of_the_lists_a_notification_names(method: str, gone: set[str]) -> None:
    """A change of a list makes every page of it stale, and no other."""
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    cache = filled(*((each, page) for each in lists for page in ("", "2")))
    cache.invalidate(method, NOTHING)
    for each in lists:
        assert (cache.get(each) is None) is (each in gone)
        assert (cache.get(each, "2") is None) is (each in gone)


def test_cache_drops_an_updated_resource_and_those_above_it() -> None:
    """The update of a resource concerns those it is below, and no others."""
    uris = ("file:///a", "file:///a/b", "file:///a/bc", "file:///c")
    cache = filled(*(("resources/read", uri) for uri in uris))
    params = ResourceUpdatedNotificationParams(uri="file:///a/bc")
    cache.invalidate("notifications/resources/updated", params)
    assert [uri for uri in uris if has(cache, uri)] == ["file:///a/b", "file:///c"]


def has(cache: ResultCache, uri: str) -> bool:
    return cache.get("resources/read", uri) is not None


def test_cache_drops_a_result_requested_before_a_change() -> None:
    """A change that is announced during a request may concern its result."""
    cache = ResultCache(10, Clock(100.0))
    asked = cache.generation
    cache.invalidate("notifications/tools/list_changed", NOTHING)
    cache.put("tools/list", "", tools(), asked)
    assert cache.get("tools/list") is None


def test_cache_forgets_what_it_is_told_to() -> None:
    """One result, all of a method, or everything can be forgotten."""
    cache = filled(("tools/list", ""), ("tools/list", "2"), ("prompts/list", ""))
    cache.discard("tools/list", "2")
    assert cache.get("tools/list")
    cache.discard("tools/list")
    assert cache.get("tools/list") is None
    assert cache.get("prompts/list")
    cache.clear()
    assert cache.get("prompts/list") is None


def test_cache_keeps_results_of_different_requests_apart() -> None:
    """A result is never given for another method or other params."""
    cache = ResultCache(10, Clock(100.0))
    contents: Any = ReadResourceResult([], ttl_ms=1000, cache_scope="public")
    cache.put("resources/read", "a:", contents, cache.generation)
    assert cache.get("resources/read", "b:") is None
    assert cache.get("resources/list", "a:") is None
