"""Components that only some principals may see."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Continue,
    Endpoint,
    MemoryStore,
    Mux,
    Prompt,
    PromptTemplate,
    Provider,
    Resource,
    Suite,
    Tool,
    ToolRequest,
    prompt,
    tool,
)
from genmcp.prompts import PromptRepo
from genmcp.protocol import ResourceDefinition
from genmcp.protocol.prompts import PromptDefinition
from genmcp.resources import ResourceRepo
from tests.support.asgi import Client
from tests.support.speaking import Speaker


def staff_only(access: Access | None) -> bool:
    return access is not None and access.subject == "ann"


class Secret(Tool):
    """For staff."""

    name = "secret"
    input_schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }
    on_disconnect = "cancel"

    def visible(self, access: Access | None) -> bool:
        return staff_only(access)

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return "hidden treasure"


@tool
async def plain() -> str:
    """For everybody."""
    return "plain"


class SecretShelf(ResourceRepo):
    """For staff."""

    name = "shelf"
    template = "shelf://{name}"

    def visible(self, access: Access | None) -> bool:
        return staff_only(access)

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition("shelf://a", "a")]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        return key["name"]

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        return ["a"]


class SecretManual(Resource):
    uri = "manual://safe"
    content = "Turn left."
    name = "safe"
    cache_scope = "public"

    def visible(self, access: Access | None) -> bool:
        return staff_only(access)


class SecretLetters(PromptRepo):
    prefix = "letter/"

    def visible(self, access: Access | None) -> bool:
        return staff_only(access)

    async def list(self, cursor: Any, channel: Channel) -> Any:
        return [PromptDefinition("letter/a")]

    async def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        return name

    async def complete(
        self, name: str, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Any:
        return [name]


@prompt(visible=staff_only, completions={"word": ["open sesame"]})
async def password(word: str) -> str:
    """For staff."""
    return word


SECRETS: dict[str, Any] = {
    "tools": [Secret, plain],
    "resources": [SecretShelf, SecretManual],
    "prompts": [SecretLetters, password],
}


class Office(Provider):
    """The same, for staff."""

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
        if access and access.subject in assigns["staff"]:
            yield Secret
        yield plain

    async def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [SecretShelf, SecretManual] if access and access.subject in assigns["staff"] else []

    def prompts(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [SecretLetters, password] if access and access.subject in assigns["staff"] else []


SUITES = {
    "visible": Suite(name="test", version="1", **SECRETS),
    "extension": Suite(name="test", version="1", providers=[Office]),
}


class Backend(AuthenticationBackend):
    """Trusts the scope's `who`."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        user = conn.scope.get("who")
        return (AuthCredentials(), SimpleUser(user)) if user else None


def client_of(suite: Suite, user: str) -> Speaker:
    endpoint = Endpoint(Mux(suite, assigns={"staff": ["ann"]}))
    app = Starlette(
        routes=[endpoint.route("/")],
        middleware=[Middleware(AuthenticationMiddleware, backend=Backend())],
    )
    return Speaker(Client(app, path="/", who=user))


async def seen(client: Speaker) -> tuple[list[str], list[dict[str, Any]]]:
    """All that is listed, and the pages it is listed on."""
    pages = [
        (await client.request(method, {})).result
        for method in (
            "tools/list",
            "resources/list",
            "resources/templates/list",
            "prompts/list",
        )
    ]
    members = ("tools", "resources", "resourceTemplates", "prompts")
    names = [
        each["name"] for page, member in zip(pages, members, strict=True) for each in page[member]
    ]
    return names, pages


@pytest.mark.parametrize("way", SUITES)
async def test_visible_components_are_listed(way: str) -> None:
    """Lists of other principals lack them; no list may be cached publicly."""
    staff, staff_pages = await seen(client_of(SUITES[way], "ann"))
    guest, guest_pages = await seen(client_of(SUITES[way], ""))

    assert staff == ["secret", "plain", "a", "safe", "shelf", "letter/a", "password"]
    assert guest == ["plain"]
    assert {page["cacheScope"] for page in staff_pages + guest_pages} == {"private"}


ASKED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tools/call", {"name": "secret"}, {"name": "secret"}),
    ("resources/read", {"uri": "shelf://a"}, {"uri": "shelf://a"}),
    ("resources/read", {"uri": "manual://safe"}, {"uri": "manual://safe"}),
    ("prompts/get", {"name": "letter/a"}, {"name": "letter/a"}),
    ("prompts/get", {"name": "password", "arguments": {"word": "x"}}, {"name": "password"}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "shelf://{name}"},
            "argument": {"name": "name", "value": ""},
        },
        {"uri": "shelf://{name}"},
    ),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "letter/a"},
            "argument": {"name": "x", "value": ""},
        },
        {"name": "letter/a"},
    ),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "password"},
            "argument": {"name": "word", "value": ""},
        },
        {"name": "password"},
    ),
]


@pytest.mark.parametrize("way", SUITES)
@pytest.mark.parametrize(("method", "params", "data"), ASKED)
async def test_visible_components_do_not_exist_for_others(
    way: str, method: str, params: dict[str, Any], data: dict[str, Any]
) -> None:
    """A component that one principal may use is unknown to another."""
    served = await client_of(SUITES[way], "ann").request(method, params)
    refused = await client_of(SUITES[way], "").request(method, params)
    unknown = await client_of(Suite(name="x", version="1", **EMPTY), "").request(method, params)

    assert "result" in served.message
    assert (-32602, data) == (refused.error["code"], refused.error["data"])
    assert unknown.error == refused.error


@prompt(completions={"a": ["b"]})
async def other(a: str) -> str:
    """Another one."""
    return a


EMPTY: dict[str, Any] = {"resources": [Resource("x:y", 1)], "prompts": [other]}


async def test_guarded_tool_has_headers_and_disconnects() -> None:
    """A guarded tool is cancelled like others; its headers are checked for those who see it."""
    route = SUITES["visible"].find("tools/call", "secret")
    assert route is not None
    assert (route.on_disconnect, route.pending) == ("cancel", True)

    answer = await client_of(SUITES["visible"], "ann").call("secret", {"region": "north"})
    assert answer.error["code"] == -32020


class HiddenTask(Secret):
    """A task before it runs."""

    name = "hidden_task"
    task = "always"


class TasksOnly(Secret):
    """Runs as a task only."""

    name = "tasks_only"
    requires_tasks = True


@pytest.mark.parametrize("name", ["secret", "hidden_task", "tasks_only"])
@pytest.mark.parametrize("extensions", [{}, {"io.modelcontextprotocol/tasks": {}}])
async def test_hidden_tool_is_not_disclosed(name: str, extensions: dict[str, Any]) -> None:
    """Neither its headers, nor its need of tasks, nor a task made in advance: visibility first."""
    store = MemoryStore()
    suite = Suite(name="test", version="1", tools=[Secret, HiddenTask, TasksOnly])
    endpoint = Endpoint(Mux(suite, store=store))
    client = Client(endpoint, capabilities={"extensions": extensions})

    hidden = await client.send(client.call(name, {"region": "north"}))
    absent = await client.send(client.call("no" + name, {"region": "north"}))
    await endpoint.mux.aclose()

    assert (200, -32602, {"name": name}) == (
        hidden.status,
        hidden.json["error"]["code"],
        hidden.json["error"]["data"],
    )
    assert absent.status == hidden.status
    assert absent.json["error"]["code"] == hidden.json["error"]["code"]
    assert "<MemoryStore: 0 records" in repr(store)


def test_visible_costs_nothing_where_it_is_not_overridden() -> None:
    """Such a tool is found as it is."""
    found = SUITES["visible"].find("tools/call", "plain")

    assert type(found).__name__ == "ToolRoute"


def test_visible_is_true_unless_it_is_overridden() -> None:
    """The default of the hook is True."""
    for component in (Tool(), Prompt(), PromptRepo(), ResourceRepo(), Resource("a:b", 1)):
        assert component.visible(None) is True


async def test_result_of_a_guarded_resource_is_private() -> None:
    """A result that only some clients may read is private, also with `cache_scope = "public"`."""
    for suite in SUITES.values():
        answer = await client_of(suite, "ann").request("resources/read", {"uri": "manual://safe"})
        assert answer.result["cacheScope"] == "private"


def test_visible_must_be_callable() -> None:
    """The error is raised at construction."""

    class Odd(SecretManual):
        visible = 5  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match=re.escape("Odd.visible must be a def")):
        Suite(name="x", version="1", resources=[Odd])


def test_visible_must_be_a_def() -> None:
    """It is called for each entry of a list."""

    async def visible(access: Access | None) -> bool:
        return True

    with pytest.raises(ConfigurationError, match=re.escape("waits.visible must be a def")):

        @tool(visible=visible)  # type: ignore[arg-type]
        async def waits() -> None: ...


async def test_provider_is_called_for_unknown_names() -> None:
    """The search stops at the first provider that has the name."""
    called: list[str] = []

    class Slow(Provider):
        def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
            called.append("tools")
            yield found
            called.append("more")
            yield last

    class After(Provider):
        def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
            called.append("after")
            yield found_again

    @tool
    async def found() -> str:
        return "found"

    @tool(name="found")
    async def found_again() -> str:
        return "again"

    @tool
    async def last() -> str:
        return "last"

    suite = Suite(name="x", version="1", tools=[plain], providers=[Slow, After()])
    client = client_of(suite, "")

    assert (await client.call("plain")).text == "plain"
    assert called == []
    assert (await client.call("found")).text == "found"
    assert called == ["tools"]
    assert (await client.call("last")).text == "last"
    listed = (await client.request("tools/list", {})).result["tools"]
    assert [each["name"] for each in listed] == ["plain", "found", "last"]
    assert (await client.call("x")).error["data"] == {"name": "x"}


async def test_provider_component_may_be_hidden() -> None:
    """`visible` counts there as well."""

    class Hiding(Provider):
        def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
            return [Secret]

    suite = Suite(name="x", version="1", providers=[Hiding])

    assert (await client_of(suite, "ann").call("secret")).text == "hidden treasure"
    assert (await client_of(suite, "").call("secret")).error["data"] == {"name": "secret"}


async def test_visibility_is_checked_when_a_call_continues() -> None:
    """A client that may not see the tool any more does not get its result."""
    staff = {"ann"}

    async def dismiss() -> None:
        staff.clear()

    class Waiting(Tool):
        name = "waiting"

        def visible(self, access: Access | None) -> bool:
            return access is not None and access.subject in staff

        def call(self, request: ToolRequest, channel: Channel) -> Continue:
            return Continue("dismissed", dismiss())

        def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
            return "hidden treasure"

    client = client_of(Suite(name="x", version="1", tools=[Waiting]), "ann")

    assert (await client.call("waiting")).error["data"] == {"name": "waiting"}


async def test_provider_of_tools_declares_no_resources() -> None:
    """One of tools alone makes no resources."""

    class Tools(Provider):
        def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
            return [plain]

    suite = Suite(name="x", version="1", providers=[Tools])
    client = client_of(suite, "")

    assert None is suite.capabilities.resources
    assert None is suite.capabilities.completions
    assert (await client.request("resources/list", {})).error["code"] == -32601
    assert [Provider().resources(None, {}), Provider().prompts(None, {})] == [(), ()]
    assert Provider().tools(None, {}) == ()


async def test_routes_of_providers_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A component yielded again is not registered again; new ones do not accumulate."""
    monkeypatch.setattr("genmcp.suite.providers._CACHED", 2)

    class New(Provider):
        def prompts(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
            return [PromptTemplate(name=name, messages=name) for name in "abc"]

    suite = Suite(name="x", version="1", providers=[New])
    client = client_of(suite, "")
    for _ in range(3):
        answer = await client.request("prompts/get", {"name": "c"})

    assert answer.result["messages"][0]["content"]["text"] == "c"
    assert len(suite._snapshot.providers._cached) <= 2


async def test_invalid_value_of_a_provider_fails_one_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the hook and its value."""

    class Odd(Provider):
        def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
            return 5

    answer = await client_of(Suite(name="x", version="1", providers=[Odd]), "").call("y")

    assert answer.error["code"] == -32603
    assert "Odd.tools returned int: it must yield, or return a list" in caplog.text
