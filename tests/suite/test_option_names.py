"""Names in a class that look like an option or a hook are errors; a user's own names are not."""

from typing import Any

import pytest

from genmcp import Channel, ConfigurationError, Middleware, Prompt, Resource, Suite, Tool
from genmcp.resources import ResourceRepo


@pytest.mark.parametrize(
    ("kind", "attribute", "value", "meant"),
    [
        (Tool, "patience", 3, "promote_after"),
        (Tool, "hold", 20.0, "max_hold"),
        (Tool, "ttl", 60, "result_ttl or cache_ttl"),
        (Tool, "once", True, "single_use"),
        (Tool, "on_lost", "rerun", "on_worker_lost"),
        (Tool, "scope", "parts:write", "scopes"),
        (Tool, "validate_request", lambda self, request, channel: request, "validate"),
        (Prompt, "ttl", 60, "cache_ttl"),
        (Resource, "ttl", 60, "cache_ttl"),
        (ResourceRepo, "scope", ["read"], "scopes"),
        (Suite, "hearing", lambda self, uris: None, "watch_resources"),
        (Middleware, "hearing", lambda self, uris: None, "watch_resources"),
        (Middleware, "announcer", property(lambda self: None), "changes"),
    ],
)
def test_name_that_would_be_ignored_is_an_error(
    kind: type, attribute: str, value: Any, meant: str
) -> None:
    """When the class is defined. A tool with a `scope` would be open to every client."""
    with pytest.raises(
        ConfigurationError, match=rf"Mine\.{attribute} .* ignored; did you mean {meant}\?"
    ):
        type("Mine", (kind,), {"name": "mine", attribute: value})


def test_attribute_of_an_instance_is_accepted() -> None:
    """Only a class sets options: what its constructor sets is the user's own."""

    class Cached(Tool):
        """Keeps its results for a minute."""

        name = "cached"
        patience: float

        def __init__(self) -> None:
            self.patience = 3.0

        def call(self, request: Any, channel: Channel) -> str:
            return ""

    Suite(name="test", version="1", tools=[Cached])


@pytest.mark.parametrize("kind", [Tool, Prompt, Resource, ResourceRepo])
@pytest.mark.parametrize("scopes", [{"ada": "write"}, {}, "write", 7])
def test_scopes_must_be_a_list(kind: Any, scopes: Any) -> None:
    """A mapping of the user's own would demand its keys: every call would be refused."""
    by_kind: dict[Any, dict[str, Any]] = {
        Tool: {"call": lambda self, request, channel: ""},
        Prompt: {"get": lambda self, request, channel: ""},
        Resource: {"uri": "x://y", "read": lambda self, key, channel: ""},
        ResourceRepo: {"template": "x://{id}", "read": lambda self, key, channel: ""},
    }
    lists = {Tool: "tools", Prompt: "prompts"}

    with pytest.raises(ConfigurationError, match=r"Mine\.scopes takes a list of scopes"):
        mine = type("Mine", (kind,), {"name": "mine", "scopes": scopes, **by_kind[kind]})
        components: Any = {lists.get(kind, "resources"): [mine]}
        Suite(name="test", version="1", **components)
