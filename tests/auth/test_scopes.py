"""The scopes of components: who lacks one gets a challenge, and no hook runs."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Endpoint,
    Prompt,
    Provider,
    Resource,
    Suite,
    Tool,
    prompt,
    tool,
)
from genmcp.prompts import PromptRepo
from genmcp.resources import ResourceRepo
from genmcp.server import Route
from tests.auth.scoped import (
    RAN,
    WRITE,
    Letters,
    Parts,
    close,
    endpoint,
    granted,
    provided,
    suite,
)
from tests.support.asgi import ALL, LEGACIES, MODERN, TASKS, Client, Connection

PROMPT = {"type": "ref/prompt", "name": "quote"}
LETTER = {"type": "ref/prompt", "name": "letter/a"}
TEMPLATE = {"type": "ref/resource", "uri": "part://{id}"}
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "tool": ("tools/call", {"name": "reorder", "arguments": {}}),
    "prompt": ("prompts/get", {"name": "quote"}),
    "prompt of a repository": ("prompts/get", {"name": "letter/a"}),
    "resource": ("resources/read", {"uri": "price://list"}),
    "resource of a template": ("resources/read", {"uri": "part://bolt"}),
    "completion of a prompt": (
        "completion/complete",
        {"ref": PROMPT, "argument": {"name": "part", "value": "b"}},
    ),
    "completion of a repository": (
        "completion/complete",
        {"ref": LETTER, "argument": {"name": "part", "value": "b"}},
    ),
    "completion of a template": (
        "completion/complete",
        {"ref": TEMPLATE, "argument": {"name": "id", "value": "b"}},
    ),
}
NEEDS_WRITE = (
    'Bearer error="insufficient_scope", '
    'error_description="The access token lacks a scope; needed: parts:write", scope="parts:write"'
)


@pytest.fixture(autouse=True)
async def _closed(_tasks_end: None) -> AsyncIterator[None]:
    yield
    await close()


def challenge_of(answer: Connection) -> str:
    return answer.headers["www-authenticate"]


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("version", ALL)
async def test_lacking_scope_is_403_before_any_hook(version: str, kind: str) -> None:
    """2026-07-28, authorization, "Scope Challenge Handling"; on every revision."""
    app = endpoint()
    client = await Client.begin(app, version, user=granted("parts:read"))
    method, params = OPERATIONS[kind]
    refused = await client.send(client.request(method, params))

    assert refused.status == 403
    assert challenge_of(refused) == NEEDS_WRITE
    assert refused.json["error"] == "insufficient_scope"
    assert refused.headers["cache-control"] == "no-store"
    assert RAN == []

    client.scope["user"] = granted("parts:read", "parts:write")
    answer = await client.send(client.request(method, params))
    assert answer.status == 200
    assert "result" in answer.json


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_anonymous_client_gets_401_with_the_scope(kind: str) -> None:
    """RFC 6750, 3.1: no error code, since the client sent no token."""
    client = Client(endpoint())
    method, params = OPERATIONS[kind]
    refused = await client.send(client.request(method, params))

    assert (refused.status, challenge_of(refused)) == (401, 'Bearer scope="parts:write"')
    assert RAN == []


async def test_component_without_scopes_is_open() -> None:
    client = Client(endpoint())

    assert (await client.send(client.call("look"))).status == 200


async def test_all_scopes_of_the_operation_are_in_one_challenge() -> None:
    """Also those that were granted: a client replaces its token by one with all of them."""
    client = Client(endpoint(), user=granted("stock:read"))
    refused = await client.send(client.call("audit"))

    assert refused.status == 403
    assert 'scope="stock:read stock:audit"' in challenge_of(refused)
    assert RAN == []


async def test_scopes_are_checked_before_arguments_and_capabilities() -> None:
    """A client learns nothing about a tool that it may not call, but its name."""

    class Strict(Tool):
        name = "strict"
        scopes = WRITE
        requires_tasks = True

    client = Client(endpoint(_run(Strict)), user=granted())
    refused = await client.send(client.call("strict", {"count": "many"}))
    badly = await client.send(client.call("reorder", {"count": "many"}))

    assert (refused.status, badly.status) == (403, 403)
    assert RAN == []


def _run(cls: type[Tool]) -> type[Tool]:
    async def call(self: Any, request: Any, channel: Channel) -> str:
        RAN.append("call")
        return ""

    cls.call = call  # type: ignore[method-assign]
    return cls


@pytest.mark.parametrize("served", [endpoint, provided])
async def test_call_that_is_to_be_a_task_gets_403(served: Any) -> None:
    """No task is made: a task was authorized when it began."""

    @tool(scopes=WRITE, task="always")
    async def long() -> str:
        RAN.append("long")
        return ""

    client = Client(served(long), capabilities=TASKS, user=granted())
    refused = await client.send(client.call("long"))
    assert (refused.status, RAN) == (403, [])

    client.scope["user"] = granted("parts:write")
    made = await client.send(client.call("long"))
    assert made.json["result"]["resultType"] == "task"


@pytest.mark.parametrize("served", [endpoint, provided])
async def test_result_of_an_idempotency_key_needs_the_scopes(served: Any) -> None:
    """A narrower token of the same user does not get the result of a wider one."""
    client = Client(served(), user=granted("parts:write"))
    meta: dict[str, Any] = {"io.genmcp/idempotencyKey": "k"}
    call = client.call("reorder", **meta)
    first = await client.send(call)
    client.scope["user"] = granted("parts:read")
    again = await client.send(call)

    assert (first.status, again.status) == (200, 403)
    assert RAN == ["validate", "call"]


@pytest.mark.parametrize("version", ALL)
async def test_lists_contain_components_out_of_scope(version: str) -> None:
    """A client asks for a scope only if it knows of the component that needs it."""
    client = await Client.begin(endpoint(), version, user=granted())
    listed = await client.send(client.request("tools/list"))
    prompts = await client.send(client.request("prompts/list"))

    assert [each["name"] for each in listed.json["result"]["tools"]] == ["reorder", "look", "audit"]
    assert len(prompts.json["result"]["prompts"]) == 2


# Batches and subscriptions.


async def test_batch_gets_the_union_of_its_scopes() -> None:
    """2025-03-26: one response has one status, so that no member of the batch runs."""
    client = await Client.begin(endpoint(), "2025-03-26", user=granted("stock:read"))
    batch = [
        client.call("look", id=1),
        client.call("audit", id=2),
        client.request("prompts/get", {"name": "quote"}, id=3),
        client.request(*OPERATIONS["completion of a template"], id=4),
    ]
    refused = await client.send(batch)

    assert refused.status == 403
    assert 'scope="stock:read stock:audit parts:write"' in challenge_of(refused)
    assert RAN == []

    client.scope["user"] = granted("stock:read", "stock:audit", "parts:write")
    assert (await client.send(batch)).status == 200


async def test_batch_with_all_scopes_names_none() -> None:
    client = await Client.begin(endpoint(), "2025-03-26", user=granted("parts:write"))
    answer = await client.send([client.call("reorder", id=1), client.call("look", id=2)])

    assert {each["id"] for each in answer.json} == {1, 2}


async def test_broken_visibility_fails_one_member_of_a_batch() -> None:
    """As before there were scopes: the other members get their answers."""

    @tool(scopes=WRITE, visible=lambda access: {"shown": True}["missing"])
    async def broken() -> str:
        return ""

    client = await Client.begin(endpoint(broken), "2025-03-26", user=granted())
    answer = await client.send([client.call("look", id=1), client.call("broken", id=2)])
    found = {each["id"]: each for each in answer.json}

    assert answer.status == 200
    assert found[1]["result"]["content"][0]["text"] == "seen"
    assert "isError" in found[2].get("result", {}) or "error" in found[2]


@pytest.mark.parametrize("version", LEGACIES)
async def test_subscription_needs_the_scopes_of_its_resource(version: str) -> None:
    """Else a client would learn when something changes that it may not read."""
    client = await Client.begin(endpoint(), version, user=granted())
    for uri in ("price://list", "part://bolt"):
        refused = await client.send(client.request("resources/subscribe", {"uri": uri}))
        assert (refused.status, challenge_of(refused)) == (403, NEEDS_WRITE)

    client.scope["user"] = granted("parts:write")
    answer = await client.send(client.request("resources/subscribe", {"uri": "price://list"}))
    assert answer.json["result"] == {}


async def test_stream_needs_the_scopes_of_all_its_resources() -> None:
    """2026-07-28: `subscriptions/listen` names any number of resources."""
    app = endpoint()
    client = Client(app, user=granted())
    wanted = {"notifications": {"resourceSubscriptions": ["price://list", "part://bolt"]}}
    listening = client.request("subscriptions/listen", wanted)
    refused = await client.send(listening)
    assert (refused.status, challenge_of(refused)) == (403, NEEDS_WRITE)

    tools = client.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    for user, message in ((granted("parts:write"), listening), (granted(), tools)):
        client.scope["user"] = user
        async with client.open(message) as stream:
            assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"


# Components that depend on the client.


class Vault(Parts):
    """Visible to staff, who need a scope as well."""

    name = "vault"
    template = "vault://{id}"

    def visible(self, access: Access | None) -> bool:
        return access is not None and "staff" in access.scopes


@tool(scopes=WRITE, visible=lambda access: access is not None and "staff" in access.scopes)
async def hidden() -> str:
    """Visible to staff, who need a scope as well."""
    RAN.append("hidden")
    return "done"


VAULTED: dict[str, tuple[str, dict[str, Any]]] = {
    "tool": ("tools/call", {"name": "hidden", "arguments": {}}),
    "resource": ("resources/read", {"uri": "vault://gold"}),
    "completion": (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "vault://{id}"},
            "argument": {"name": "id", "value": ""},
        },
    ),
}


@pytest.mark.parametrize("kind", VAULTED)
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_hidden_component_stays_unknown_without_its_scopes(version: str, kind: str) -> None:
    """A challenge would disclose that it exists; it is for clients that may see the component."""
    app = Endpoint(Suite(name="test", version="1", tools=[hidden], resources=[Vault]))
    method, params = VAULTED[kind]
    client = await Client.begin(app, version, user=granted())
    unknown = await client.send(client.request(method, params))
    client.scope["user"] = granted("staff")
    refused = await client.send(client.request(method, params))
    client.scope["user"] = granted("staff", "parts:write")
    answer = await client.send(client.request(method, params))

    assert unknown.status == 200
    assert "error" in unknown.json
    assert (refused.status, challenge_of(refused)) == (403, NEEDS_WRITE)
    assert "result" in answer.json


@pytest.mark.parametrize("kind", VAULTED)
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_component_of_a_provider_needs_its_scopes(version: str, kind: str) -> None:
    """Only the provider knows it, so that its scopes are found with its route."""

    class Later(Provider):
        async def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
            return [hidden]

        def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
            yield Vault

    app = Endpoint(Suite(name="test", version="1", providers=[Later]))
    method, params = VAULTED[kind]
    client = await Client.begin(app, version, user=granted("staff"))
    refused = await client.send(client.request(method, params))
    assert (refused.status, challenge_of(refused)) == (403, NEEDS_WRITE)
    assert RAN == []

    client.scope["user"] = granted("staff", "parts:write")
    answer = await client.send(client.request(method, params))
    assert answer.status == 200


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_operation_on_a_provider_needs_the_same_scopes(kind: str) -> None:
    """Whichever kind of component it is, and whether it is read or completed."""
    client = Client(provided(), user=granted("parts:read"))
    method, params = OPERATIONS[kind]
    refused = await client.send(client.request(method, params))
    assert (refused.status, challenge_of(refused), RAN) == (403, NEEDS_WRITE, [])

    client.scope["user"] = granted("parts:write")
    assert "result" in (await client.send(client.request(method, params))).json


async def test_member_of_a_batch_in_a_provider_gets_its_error() -> None:
    """Its scopes are found with its route, when the other members run already."""
    client = await Client.begin(provided(), "2025-03-26", user=granted())
    answer = await client.send([client.call("look", id=1), client.call("reorder", id=2)])
    results = {each["id"]: each["result"] for each in answer.json}

    assert answer.status == 200
    assert results[1]["content"][0]["text"] == "seen"
    assert results[2]["isError"]
    assert "parts:write" in results[2]["content"][0]["text"]
    assert RAN == []


async def test_resource_of_a_provider_is_checked_when_it_is_read() -> None:
    """A subscription discloses only that it changes; which scopes it needs is not known yet."""
    client = Client(provided(), user=granted())
    wanted = {"notifications": {"resourceSubscriptions": ["price://list"]}}
    async with client.open(client.request("subscriptions/listen", wanted)) as stream:
        acknowledged = await stream.message()
    refused = await client.send(client.request("resources/read", {"uri": "price://list"}))

    honored = acknowledged["params"]["notifications"]
    assert honored["resourceSubscriptions"] == ["price://list"]
    assert (refused.status, challenge_of(refused)) == (403, NEEDS_WRITE)


# What a server author sees.


async def test_refused_call_is_logged_with_its_scopes(caplog: pytest.LogCaptureFixture) -> None:
    """An operator finds the tool and the missing scopes of a call that fails."""
    caplog.set_level(logging.INFO, "genmcp")
    client = Client(endpoint(), user=granted("stock:read"))
    await client.send(client.call("audit"))
    del client.scope["user"]
    await client.send(client.call("reorder"))
    batching = await Client.begin(endpoint(), "2025-03-26", user=granted())
    await batching.send([batching.call("look", id=1), batching.call("reorder", id=2)])

    assert [record.getMessage() for record in caplog.records if record.name == "genmcp"] == [
        "tools/call audit was refused: the access token lacks stock:audit",
        "tools/call reorder was refused: an anonymous client lacks parts:write",
        "tools/call reorder was refused: the access token lacks parts:write",
    ]


@pytest.mark.parametrize("wrong", ["parts:write", None, 5, ["two words"], [""], ["a\\b"], [5]])
def test_wrong_scopes_fail_when_they_are_given(wrong: Any) -> None:
    """A str is a collection of letters, none of which is meant."""
    with pytest.raises(ConfigurationError, match="scope"):
        type("Wrong", (Tool,), {"name": "wrong", "scopes": wrong})
    with pytest.raises(ConfigurationError, match="scope"):
        type("Wrong", (Prompt,), {"name": "wrong", "scopes": wrong})
    with pytest.raises(ConfigurationError, match="scope"):
        tool(scopes=wrong)(lambda: "")
    with pytest.raises(ConfigurationError, match="scope"):
        prompt(scopes=wrong)(lambda: "")
    with pytest.raises(ConfigurationError, match="scope"):
        Suite(name="test", version="1", resources=[Resource("a://b", "", name="b", scopes=wrong)])
    repo = type("Wrong", (ResourceRepo,), {"prefix": "a://", "scopes": wrong, "read": Parts.read})
    with pytest.raises(ConfigurationError, match="scope"):
        Suite(name="test", version="1", resources=[repo])
    letters: Any = {"prefix": "a", "scopes": wrong, "list": Parts.list, "get": Letters.get}
    with pytest.raises(ConfigurationError, match="scope"):
        Suite(name="test", version="1", prompts=[type("Wrong", (PromptRepo,), letters)])


def test_wrong_scopes_of_a_route_fail_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"Route\.scopes"):
        Route(scopes="parts:write")  # type: ignore[arg-type]


def test_offline_access_is_no_scope_of_a_component() -> None:
    """2026-07-28, authorization, "Refresh Tokens": it is between client and issuer."""
    with pytest.raises(ConfigurationError, match="offline_access"):
        tool(scopes=["offline_access"])(lambda: "")


async def test_scopes_of_an_instance_are_its_own() -> None:
    """A class may be registered twice, under two names with different scopes."""
    ours = suite().find("tools/call", "audit")
    assert ours is not None
    assert ours.scopes == ("stock:read", "stock:audit")
