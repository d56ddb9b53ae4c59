"""`InsufficientScope` raised by a hook, and scopes on every transport."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

from genmcp import (
    Access,
    Channel,
    Continue,
    Endpoint,
    Hub,
    InsufficientScope,
    Limits,
    Mux,
    Provider,
    Resource,
    Run,
    ServerConfig,
    Suite,
    Telemetry,
    Tool,
    ToolRequest,
    elicit,
    job,
    prompt,
    server,
    tool,
)
from genmcp.client.errors import ClientError
from genmcp.registry.registry import Registry
from genmcp.server import Route
from genmcp.testing import connect
from tests.auth.scoped import (
    RAN,
    Parts,
    Reorder,
    close,
    endpoint,
    granted,
    look,
    provided,
    registered,
    suite,
)
from tests.support.asgi import ALL, LEGACIES, MODERN, PATIENCE, TASKS, Client, until
from tests.support.asking import YES, AnsweringClient
from tests.support.pipes import piped_mux
from tests.support.serving import serve
from tests.support.tokens import Tokens, bearing, call, guarded
from tests.transports.test_sse_pair import connected

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
NEEDED = "The access token lacks a scope; needed: parts:write parts:bulk"
BULK = {"count": 500}


@pytest.fixture(autouse=True)
async def _closed(_tasks_end: None) -> AsyncIterator[None]:
    yield
    await close()


# Raised by a hook.


@pytest.mark.parametrize("version", ALL)
async def test_scope_found_in_arguments_is_403_with_all_scopes(version: str) -> None:
    """A token for one scope after the other would ask the user twice."""
    client = await Client.begin(endpoint(), version, user=granted("parts:write"))
    refused = await client.send(client.call("reorder", BULK))
    client.scope["user"] = granted("parts:write", "parts:bulk")
    answer = await client.send(client.call("reorder", BULK))

    assert refused.status == 403
    assert 'scope="parts:write parts:bulk"' in refused.headers["www-authenticate"]
    assert answer.json["result"]["content"][0]["text"] == "ordered"


async def test_slow_hook_gets_403_as_well() -> None:
    """The response is open by then, but its head was not sent."""

    @tool
    async def slow(channel: Channel) -> str:
        await asyncio.sleep(0.08)  # longer than a tick, after which the call is open
        raise InsufficientScope("parts:bulk")

    client = Client(endpoint(slow), user=granted())
    refused = await client.send(client.call("slow"))

    assert refused.status == 403
    assert 'scope="parts:bulk"' in refused.headers["www-authenticate"]


@tool
async def chatty(channel: Channel) -> str:
    """Reports before it finds that a scope is missing."""
    await channel.progress(1)
    raise InsufficientScope("parts:bulk")


@prompt(scopes=["parts:write"])
async def wordy(channel: Channel) -> str:
    """Reports before it finds that a scope is missing."""
    await channel.progress(1)
    raise InsufficientScope("parts:bulk")


@pytest.mark.parametrize("version", ALL)
async def test_scope_missing_in_a_stream_is_an_error_result(version: str) -> None:
    """The status of the response was sent before."""
    client = await Client.begin(endpoint(chatty), version, user=granted())
    answer = await client.send(client.call("chatty", progressToken="p"))
    result = answer.messages[-1]["result"]

    assert (answer.status, answer.is_stream, result["isError"]) == (200, True, True)
    assert "parts:bulk" in result["content"][0]["text"]
    assert "www-authenticate" not in answer.headers


async def test_client_without_streams_gets_403_after_progress() -> None:
    """Nothing was sent to it before the answer."""
    client = Client(endpoint(chatty), user=granted())
    headers = {"accept": "application/json"}
    refused = await client.send(client.call("chatty", progressToken="p"), headers=headers)

    assert refused.status == 403


async def test_prompt_in_a_stream_gets_an_error_with_the_scopes() -> None:
    """Prompts and resources have no error result."""
    app = Endpoint(Suite(name="test", version="1", prompts=[wordy]))
    client = Client(app, user=granted("parts:write"))
    answer = await client.send(client.request("prompts/get", {"name": "wordy"}, progressToken="p"))
    error = answer.messages[-1]["error"]

    assert (error["message"], error["data"]) == (NEEDED, {"scopes": ["parts:write", "parts:bulk"]})


async def test_member_of_a_batch_gets_an_error_result() -> None:
    """The other members have run: their answers must not get lost in a 403."""
    client = await Client.begin(endpoint(), "2025-03-26", user=granted("parts:write"))
    batch = [client.call("look", id=1), client.call("reorder", BULK, id=2)]
    answer = await client.send(batch)
    results = {each["id"]: each["result"] for each in answer.json}

    assert answer.status == 200
    assert results[1]["content"][0]["text"] == "seen"
    assert results[2]["content"][0]["text"] == NEEDED


# After a wait.


@job
async def fetched(run: Run) -> str:
    return "done"


class Waits(Tool):
    """Waits for a job or an answer, and then finds that a scope is missing."""

    name = "waits"
    scopes = ("parts:write",)
    input_schema: Any = {"type": "object"}

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        RAN.append("call")
        if request.arguments:
            return elicit("Sure?", {"type": "object", "properties": {}}).then(self.after)
        return fetched.job().then(self.after)

    async def after(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        RAN.append("after")
        raise InsufficientScope("parts:bulk")


async def test_scope_missing_in_a_task_is_its_error_result() -> None:
    client = Client(endpoint(Waits), capabilities=TASKS, user=granted("parts:write"))
    id = (await client.send(client.call("waits"))).json["result"]["taskId"]
    async with asyncio.timeout(PATIENCE):
        task: dict[str, Any] = {"status": "working"}
        while task["status"] == "working":
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task = answer.json["result"]

    assert task["result"]["isError"]
    assert "parts:bulk" in task["result"]["content"][0]["text"]


async def test_task_of_another_principal_is_unknown() -> None:
    """A wider token does not open another user's task; another client of the user does."""
    app = endpoint(Waits)
    client = Client(app, capabilities=TASKS, user=granted("parts:write"))
    id = (await client.send(client.call("waits"))).json["result"]["taskId"]
    client.scope["user"] = granted("parts:write", "parts:bulk", subject="bob")
    unknown = await client.send(client.request("tasks/get", {"taskId": id}))
    client.scope["user"] = granted(client_id="registered again")
    found = await client.send(client.request("tasks/get", {"taskId": id}))

    assert unknown.json["error"]["code"] == -32602
    assert found.json["result"]["taskId"] == id


async def test_scope_missing_after_an_answer_is_an_error_result() -> None:
    """A 403 would make the client repeat the call after its first step has taken effect."""
    client = await AnsweringClient.begin(endpoint(Waits), user=granted("parts:write"))
    asked = await client.send(client.call("waits", {"ask": True}))
    (question,) = asked.json["result"]["inputRequests"]
    answer = await client.send(client.retry(asked, **{question: YES}))

    assert answer.status == 200
    assert "parts:bulk" in answer.json["result"]["content"][0]["text"]


SERVED = pytest.mark.parametrize(
    ("served", "prefix"), [(endpoint, ""), (provided, ""), (registered, "test/")]
)
"""The server has the tool itself, or a provider has it, or that of a member of a registry."""


@SERVED
async def test_answer_with_a_narrower_token_is_403(served: Any, prefix: str) -> None:
    """The token is checked anew with each request; then the same answer is accepted."""
    client = await AnsweringClient.begin(served(Waits), user=granted("parts:write"))
    asked = await client.send(client.call(f"{prefix}waits", {"ask": True}))
    (question,) = asked.json["result"]["inputRequests"]
    client.scope["user"] = granted("parts:read")
    refused = await client.send(client.retry(asked, **{question: YES}))
    ran = [*RAN]
    client.scope["user"] = granted("parts:write")
    answer = await client.send(client.retry(asked, **{question: YES}))

    assert (refused.status, ran) == (403, ["call"])
    assert (answer.status, RAN) == (200, ["call", "after"])


class Works(Tool):
    """Works as a task, which then asks a question."""

    name = "works"
    scopes = ("parts:write",)

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return fetched.job().then(self.ask)

    async def ask(self, request: ToolRequest, value: Any, channel: Channel) -> Continue:
        return elicit("Sure?", {"type": "object", "properties": {}}).then(self.after)

    async def after(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return "worked"


ABLE = {**TASKS, "elicitation": {"form": {}}}


@SERVED
async def test_answer_to_a_task_with_a_narrower_token_is_403(served: Any, prefix: str) -> None:
    """Another client of the user must not accept a call that it could not begin."""
    client = Client(served(Works), capabilities=ABLE, user=granted("parts:write"))
    id = (await client.send(client.call(f"{prefix}works"))).json["result"]["taskId"]
    get = client.request("tasks/get", {"taskId": id})
    async with asyncio.timeout(PATIENCE):
        while not (asked := (await client.send(get)).json["result"].get("inputRequests")):
            pass
        update = client.request(
            "tasks/update", {"taskId": id, "inputResponses": dict.fromkeys(asked, YES)}
        )
        client.scope["user"] = granted("parts:read")
        refused = await client.send(update)
        seen = (await client.send(get)).json["result"]
        client.scope["user"] = granted("parts:write")
        accepted = await client.send(update)
        while (task := (await client.send(get)).json["result"])["status"] != "completed":
            pass

    assert refused.status == 403
    assert 'scope="parts:write"' in refused.headers["www-authenticate"]
    assert seen["status"] == "input_required"
    assert accepted.status == 200
    assert task["result"]["content"][0]["text"] == "worked"


@SERVED
async def test_task_is_read_and_cancelled_without_its_scopes(served: Any, prefix: str) -> None:
    """The id and the identity are enough: the work was authorized when it began."""
    client = Client(served(Works), capabilities=ABLE, user=granted("parts:write"))
    id = (await client.send(client.call(f"{prefix}works"))).json["result"]["taskId"]
    client.scope["user"] = granted("parts:read")
    read = await client.send(client.request("tasks/get", {"taskId": id}))
    cancelled = await client.send(client.request("tasks/cancel", {"taskId": id}))
    after = await client.send(client.request("tasks/get", {"taskId": id}))

    assert (read.status, cancelled.status) == (200, 200)
    assert after.json["result"]["status"] == "cancelled"


# Transports.


@pytest.mark.parametrize("version", [MODERN, LEGACIES[0]])
async def test_local_user_of_a_pipe_needs_no_scopes(version: str) -> None:
    """The user who starts a process has its rights. A hook that refuses gets an error result."""
    async with piped_mux(Mux(suite())) as wires:
        if version == MODERN:
            called = await wires.ask("tools/call", {"name": "reorder", "arguments": {}})
            bulk = await wires.ask("tools/call", {"name": "reorder", "arguments": BULK}, id=2)
        else:
            await wires.initialize(version)
            called = await legacy_call(wires, 5, {})
            bulk = await legacy_call(wires, 6, BULK)

    assert called["result"]["content"][0]["text"] == "ordered"
    assert bulk["result"]["isError"]
    assert bulk["result"]["content"][0]["text"] == NEEDED


@pytest.mark.parametrize(
    ("principal", "found"),
    [
        (None, None),
        ("ann", Access(subject="ann")),
        (granted("parts:bulk"), granted("parts:bulk")),
    ],
)
async def test_owner_of_a_pipe_states_who_calls(principal: Any, found: Access | None) -> None:
    """For hooks that ask for an identity or a scope."""
    seen: list[Access | None] = []

    @tool(scopes=["parts:write"])
    async def whoami(channel: Channel) -> str:
        seen.append(channel.access)
        return str(channel.principal)

    async with piped_mux(Mux(suite(whoami)), principal=principal) as wires:
        answer = await wires.ask("tools/call", {"name": "whoami", "arguments": {}})

    assert seen == [found]
    assert answer["result"]["content"][0]["text"] == str(found and found.principal)


async def legacy_call(wires: Any, id: int, arguments: dict[str, Any]) -> Any:
    params = {"name": "reorder", "arguments": arguments}
    wires.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    return await wires.answer(id)


async def test_sse_pair_refuses_a_message_that_lacks_scopes() -> None:
    """2024-11-05: the POST has a status, although its answer would be on the stream."""
    app = Starlette(routes=[endpoint().sse_route("/sse")])
    async with connected(app, user=granted()) as pair:
        refused = await pair.send(pair.call("reorder"))
        assert (refused.status, RAN) == (403, [])
        assert 'scope="parts:write"' in refused.headers["www-authenticate"]

        pair.scope["user"] = granted("parts:write")
        ordered = await pair.tell(pair.call("reorder", id=2))
        bulk = await pair.tell(pair.call("reorder", BULK, id=3))

    assert ordered["result"]["content"][0]["text"] == "ordered"
    assert bulk["result"]["content"][0]["text"] == NEEDED


async def test_member_of_a_registry_keeps_the_scopes_of_its_tools() -> None:
    """Else a tool would lose its protection by being served together with others."""
    registry = Registry([suite(), Suite(name="other", version="1", tools=[look])])
    client = Client(Endpoint(registry.server()), user=granted())
    refused = await client.send(client.call("test/reorder"))
    opened = await client.send(client.call("other/look"))
    client.scope["user"] = granted("parts:write")
    answer = await client.send(client.call("test/reorder"))

    assert (refused.status, opened.status, answer.status) == (403, 200, 200)
    assert 'scope="parts:write"' in refused.headers["www-authenticate"]


async def test_resource_that_two_members_may_have_needs_scopes_of_each() -> None:
    """The scopes of a member are checked when it is called, and no later member is tried."""

    class Later(Provider):
        def resources(self, access: Access | None, assigns: Any) -> Any:
            return [Resource("note://b", "b", name="b")]

    class Guarded(Provider):
        def resources(self, access: Access | None, assigns: Any) -> Any:
            return [Resource("note://a", "a", name="a", scopes=["notes"])]

    members = [
        Suite(name=name, version="1", providers=[each])
        for name, each in (("one", Later), ("two", Guarded))
    ]
    client = Client(Endpoint(Registry(members).server()), user=granted())
    opened = await client.send(client.request("resources/read", {"uri": "note://b"}))
    refused = await client.send(client.request("resources/read", {"uri": "note://a"}))
    client.scope["user"] = granted("notes")
    answer = await client.send(client.request("resources/read", {"uri": "note://a"}))

    assert (opened.status, refused.status) == (200, 403)
    assert answer.json["result"]["contents"][0]["text"] == "a"


async def test_resource_of_a_later_provider_needs_its_scopes() -> None:
    """An earlier member may have the resource as well, and only that one was asked at first."""

    class Later(Provider):
        def resources(self, access: Access | None, assigns: Any) -> Any:
            return [Resource("overflow://a", "a", name="a", scopes=["notes"])]

    members = [
        Suite(name="one", version="1", overflow=1000),
        Suite(name="two", version="1", providers=[Later]),
    ]
    client = Client(Endpoint(Registry(members).server()), user=granted())
    refused = await client.send(client.request("resources/read", {"uri": "overflow://a"}))
    unknown = await client.send(client.request("resources/read", {"uri": "overflow://b"}))
    client.scope["user"] = granted("notes")
    answer = await client.send(client.request("resources/read", {"uri": "overflow://a"}))

    assert (refused.status, unknown.json["error"]["code"]) == (403, -32602)
    assert answer.json["result"]["contents"][0]["text"] == "a"


async def test_hidden_resource_of_a_later_member_stays_unknown() -> None:
    """A challenge with its scopes would disclose that it exists."""

    class Empty(Provider):
        """May have any resource, and has none."""

        def resources(self, access: Access | None, assigns: Any) -> Any:
            return []

    class Vault(Parts):
        """Hidden from everyone."""

        name = "vault"
        template = "vault://{id}"
        scopes = ["vault"]

        def visible(self, access: Access | None) -> bool:
            return False

    members = [
        Suite(name="one", version="1", providers=[Empty]),
        Suite(name="two", version="1", resources=[Vault]),
    ]
    client = Client(Endpoint(Registry(members).server()), user=granted())
    unknown = await client.send(client.request("resources/read", {"uri": "vault://gold"}))

    assert (unknown.status, unknown.json["error"]["code"]) == (200, -32602)


async def test_hub_reports_its_own_denied_access() -> None:
    """The scopes are those of the hub's own token: its client cannot mend that."""
    app = guarded(Reorder, scopes=["read"], verify=Tokens(narrow=granted("read")))
    async with serve(app) as url, Hub() as hub:
        far = ServerConfig("far", url=url, headers={"authorization": "Bearer narrow"})
        await hub.add(far)
        async with connect(hub.server(), access=granted("parts:write")) as client:
            answer = await client.call("far/reorder")

    assert (answer.is_error, RAN) == (True, [])
    assert answer.text == "The server behind this one denies this to the hub"


# Where scopes come from.


class Header(AuthenticationBackend):
    """Authenticates by a header that names the scopes."""

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser] | None:
        scopes = conn.headers.get("x-scopes")
        return None if scopes is None else (AuthCredentials(scopes.split()), SimpleUser("ann"))


async def test_host_application_gives_scopes() -> None:
    """The challenge names no metadata, of which only the host could know."""
    app = Starlette(
        routes=[endpoint().route("/mcp")],
        middleware=[Middleware(AuthenticationMiddleware, backend=Header())],
    )
    async with serve(app) as url, httpx.AsyncClient() as http:
        wanted = call("reorder")
        statuses, challenges = [], []
        for scopes in (None, "parts:read", "parts:read parts:write"):
            more = {} if scopes is None else {"x-scopes": scopes}
            headers = {**wanted["headers"], **more}
            answer = await http.post(f"{url}/mcp", **{**wanted, "headers": headers})
            statuses.append(answer.status_code)
            challenges.append(answer.headers.get("www-authenticate"))

    assert statuses == [401, 403, 200]
    assert challenges[0] == 'Bearer scope="parts:write"'
    assert challenges[1].startswith('Bearer error="insufficient_scope"')
    assert "resource_metadata" not in challenges[1]


async def test_wider_token_succeeds_on_the_next_call() -> None:
    """The challenge of an endpoint has its own scopes, those of the tool, and the metadata."""
    verify = Tokens(
        narrow=granted("read"), wide=granted("read", "parts:write"), admin=granted("read", "admin")
    )
    app = guarded(
        Reorder,
        scopes=["read"],
        verify=verify,
        implies={"admin": ["parts:write"], "parts:write": ["parts:bulk"]},
    )
    async with serve(app) as url, httpx.AsyncClient() as http:
        answers = {
            token: await http.post(url, **bearing(token, call("reorder", BULK)))
            for token in ("narrow", "wide", "admin")
        }
        refused = answers["narrow"]

    assert {token: each.status_code for token, each in answers.items()} == {
        "narrow": 403,
        "wide": 200,
        "admin": 200,
    }
    assert refused.headers["www-authenticate"] == (
        'Bearer error="insufficient_scope", '
        'error_description="The access token lacks a scope; needed: parts:write", '
        f'scope="read parts:write", resource_metadata="{METADATA}"'
    )
    assert refused.json()["error"] == "insufficient_scope"


async def test_anonymous_call_of_an_optional_endpoint_is_401() -> None:
    """`Bearer(optional=True)` lets anonymous clients in, to tools without scopes."""
    app = guarded(Reorder, look, optional=True)
    async with serve(app) as url, httpx.AsyncClient() as http:
        seen = await http.post(url, **call("look"))
        refused = await http.post(url, **call("reorder"))

    assert (seen.status_code, refused.status_code) == (200, 401)
    assert refused.headers["www-authenticate"] == (
        f'Bearer scope="parts:write", resource_metadata="{METADATA}"'
    )


async def test_testing_client_brings_an_access() -> None:
    """Also to an endpoint with `auth=`: a test of tools needs no tokens."""
    for app in (suite(), guarded(Reorder, scopes=["read"])):
        async with connect(app, access=granted("read", "parts:write")) as client:
            assert (await client.call("reorder")).text == "ordered"
        async with connect(app, access=granted("read")) as client:
            with pytest.raises(ClientError, match=re.compile("scope|403")):
                await client.call("reorder")


# Limits.


@tool(visible=lambda access: True)
async def endless(channel: Channel) -> str:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()
    return "never"


async def test_limits_count_by_issuer_and_subject() -> None:
    """A client that registers again has no new share; the same name elsewhere has its own."""
    mux = Mux(suite(endless), limits=Limits(max_waiting_calls=4))
    app = Endpoint(mux)
    first, again, elsewhere = (
        Client(app, user=user)
        for user in (
            granted(),
            granted(client_id="registered again"),
            Access(issuer="https://elsewhere.example", subject="ann"),
        )
    )
    async with first.open(first.call("endless")):
        await until(lambda: mux.waiting_calls.full)
        statuses = [
            (await client.send(client.call("look"))).status for client in (first, again, elsewhere)
        ]
    await mux.aclose()

    assert statuses == [429, 429, 200]


class Strict(server.Middleware):
    """Adds a scope to every route."""

    def find(self, method: str, key: str) -> Route | None:
        route = super().find(method, key)
        return None if route is None else replace(route, scopes=(*route.scopes, "strict"))


@tool(scopes=["parts:write"], visible=lambda access: True)
async def shown() -> str:
    """Has a route that is pending."""
    RAN.append("shown")
    return "shown"


@pytest.mark.parametrize("name", ["look", "shown"])
async def test_middleware_adds_scopes_to_any_server(name: str) -> None:
    """Also to a route that is pending, which is replaced when it is resolved."""
    client = Client(Endpoint(Strict(suite(shown))), user=granted("parts:write"))
    refused = await client.send(client.call(name))
    client.scope["user"] = granted("parts:write", "strict")
    answer = await client.send(client.call(name))

    assert (refused.status, answer.status) == (403, 200)
    assert 'strict"' in refused.headers["www-authenticate"]


async def test_refused_call_is_a_failed_call_for_telemetry() -> None:
    """It has a record with its tool, although no hook has run."""
    seen: list[Any] = []

    class Observer(Telemetry):
        def request_failed(self, request: Any, failure: Any, mark: Any) -> None:
            seen.append((request.key, failure.message))

    mux = Mux(suite(), telemetry=Observer())
    client = Client(Endpoint(mux), user=granted())
    await client.send(client.call("reorder"))

    assert seen == [("reorder", "The access token lacks a scope; needed: parts:write")]
