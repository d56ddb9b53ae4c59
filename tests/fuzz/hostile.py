"""Messages for the bounds: batches, URIs and names, `_meta`, params of notifications."""

from collections.abc import Mapping
from random import Random
from typing import Any

from genmcp import Channel, Suite, prompt
from genmcp.completion import prefix_matches
from genmcp.resources import ResourceRepo
from tests.fuzz import mutation
from tests.fuzz.tools import Anything
from tests.support.asgi import Client

_REQUESTS = ["ping", "tools/list", "resources/list", "prompts/list"]
_NOTIFICATIONS = [
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/nothing",
]
_KEYS = [
    "progressToken",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
    "io.modelcontextprotocol/subscriptionId",
    "io.genmcp/idempotencyKey",
    "traceparent",
    "",
]
_PIECES = [
    "note://",
    "a",
    "/",
    "..",
    "%2f",
    "%00",
    "%",
    "{+path}",
    "?",
    "#",
    "\u00e9",
    "\U0001f600",
]


class Notes(ResourceRepo):
    """A note for every URI."""

    name = "notes"
    template = "note://{+path}"

    async def read(self, key: dict[str, str], channel: Channel) -> str | None:
        return "a note"

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        return prefix_matches(["one", "two"], value)


@prompt
def greet(name: str = "") -> str:
    """Greets."""
    return f"Greet {name}"


suite = Suite(name="fuzz", version="1", tools=[Anything], resources=[Notes()], prompts=[greet])
"""The server that meets them: it has a resource at every URI."""


def message(rng: Random, version: str) -> Any:
    """Return a message of *version*, or a batch of them."""
    if version == "2025-03-26" and rng.random() < 0.6:
        size = rng.choice([1, 2, 10, 99, 100, 101, 400])
        return [_member(rng, version, id) for id in range(size)]
    return _single(rng, version, 1)


def _member(rng: Random, version: str, id: int) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return mutation.value(rng, depth=3)
    if kind < 0.3:
        return _notification(rng, version)
    if kind < 0.8:
        return Client(None, version).request(rng.choice(_REQUESTS), {}, id=id)
    return _single(rng, version, id)


def _single(rng: Random, version: str, id: int) -> Any:
    client = Client(None, version)
    kind = rng.random()
    if kind < 0.2:
        return _notification(rng, version)
    if kind < 0.5:
        made = client.call("anything", {}, id=id)
        return _with_meta(rng, made)
    method, params = _naming(rng)
    return client.request(method, params, id=id)


def _notification(rng: Random, version: str) -> Any:
    made = Client(None, version).notification(rng.choice(_NOTIFICATIONS))
    kind = rng.random()
    if kind < 0.3:
        del made["params"]
    elif kind < 0.8:
        made["params"] = mutation.value(rng, depth=4)
    else:
        made["params"] = {"requestId": mutation.value(rng), "reason": mutation.value(rng)}
    return made


def _with_meta(rng: Random, made: Any) -> Any:
    if rng.random() < 0.3:
        made["params"]["_meta"] = mutation.value(rng, depth=4)
        return made
    meta = made["params"].setdefault("_meta", {})
    for _ in range(rng.randrange(1, 4)):
        meta[rng.choice(_KEYS)] = mutation.value(rng, depth=3)
    return made


def _naming(rng: Random) -> tuple[str, dict[str, Any]]:
    uri = _uri(rng)
    match rng.randrange(7):
        case 0:
            return "resources/read", {"uri": uri}
        case 1:
            return "resources/subscribe", {"uri": uri}
        case 2:
            return "resources/unsubscribe", {"uri": uri}
        case 3:
            ref = {"type": "ref/resource", "uri": rng.choice(["note://{+path}", uri])}
            argument = {"name": rng.choice(["path", uri]), "value": uri}
            return "completion/complete", {"ref": ref, "argument": argument}
        case 4:
            return "tools/call", {"name": uri, "arguments": {}}
        case 5:
            return "prompts/get", {"name": rng.choice(["greet", uri])}
        case _:
            uris = [_uri(rng) for _ in range(rng.choice([0, 1, 20]))]
            return "subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}}


def _uri(rng: Random) -> str:
    if rng.random() < 0.3:
        return "note://" + rng.choice("x\u00e9/") * rng.choice([2040, 2041, 2042, 5000])
    return "".join(rng.choices(_PIECES, k=rng.randrange(8)))
