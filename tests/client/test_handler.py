"""A server's requests reach the hooks, and their results reach the server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler, Denied, Sampled
from genmcp.client.handler_runner import HandlerRunner
from genmcp.errors import (
    ConfigurationError,
    InternalError,
    InvalidParams,
    McpError,
    MethodNotFound,
)
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    InputRequest,
    ListRootsRequest,
    ListRootsResult,
    Root,
    SamplingMessage,
    ToolChoice,
)
from genmcp.protocol.content import TextContent
from genmcp.question.question import Accepted, Cancelled, Declined

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "Ada"},
        "age": {"type": "integer", "minimum": 18},
    },
    "required": ["name"],
}
ASKED = ElicitRequestParams("Who?", FORM)
SENT = ElicitRequestParams("Go there?", url="https://example.test/pay", mode="url")
SAMPLE = CreateMessageRequestParams(
    messages=[SamplingMessage("user", TextContent("Say hello."))], max_tokens=10
)
HELLO = {"role": "assistant", "content": {"type": "text", "text": "Hello."}, "model": "m"}


class Form(ClientHandler):
    """Answers every form with a given value."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.asked: list[Any] = []

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        self.asked.append((message, schema))
        return self.said


async def answer(handler: ClientHandler | None, method: str, params: Any = None) -> Any:
    """Put one question to a handler of its own connection."""
    answering = HandlerRunner(handler)
    try:
        return await answering.answer(method, params)
    finally:
        await answering.close()


async def test_handler_without_hooks_declares_nothing() -> None:
    """A client without a handler gets no questions."""
    assert HandlerRunner().capabilities == ClientCapabilities()
    for method in ("roots/list", "sampling/createMessage", "elicitation/create", "what/ever"):
        with pytest.raises(MethodNotFound, match=method):
            await answer(None, method, SAMPLE)


def test_handler_with_a_misspelt_hook_is_refused() -> None:
    """When its class is made, with the name it should have; other names are its own affair."""
    with pytest.raises(
        ConfigurationError, match=r"handle_elicitation is not a hook; .*tion_create"
    ):

        class Asked(ClientHandler):
            async def handle_elicitation(self, message: str, schema: Any) -> Any: ...

    class Own(Form):
        def _handle_it(self) -> None: ...

        def help(self) -> None: ...

    assert HandlerRunner(Own("x")).capabilities.elicitation is not None


async def test_handler_that_returns_what_was_filled_in_is_told_how(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A URL has no content: the user accepts, or does not."""
    with pytest.raises(InternalError):
        await answer(Form({"name": "Ada"}), "elicitation/create", ASKED)

    assert "return Accepted({...}), Declined() or Cancelled()" in caplog.text


def test_handler_denies_what_it_likes() -> None:
    """Any question, by default."""
    assert Denied().message == "User rejected the request"


async def test_handler_capabilities_follow_from_its_hooks() -> None:
    """An overridden hook is declared, in the form of its class."""

    class All(Form):
        sampling_tools = True
        sampling_context = True

        def handle_list_roots(self) -> Any:
            return []

        def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
            return HELLO

        def handle_url_elicitation(self, message: str, url: str) -> Any:
            return Accepted()

    class Url(ClientHandler):
        def handle_url_elicitation(self, message: str, url: str) -> Any:
            return Accepted()

        def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
            return HELLO

    assert HandlerRunner(All(None)).capabilities == ClientCapabilities(
        roots={},
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
    )
    assert HandlerRunner(Url()).capabilities == ClientCapabilities(
        sampling=SamplingCapability(), elicitation=ElicitationCapability(url={})
    )


async def test_handler_may_say_what_it_declares() -> None:
    """Declared without a hook it is declined, empty or refused; an empty object means forms."""

    class Handler(ClientHandler):
        capabilities = ClientCapabilities(
            roots={}, sampling=SamplingCapability(), elicitation=ElicitationCapability()
        )

    assert HandlerRunner(Handler()).capabilities == Handler.capabilities
    assert await answer(Handler(), "roots/list") == ListRootsResult([])
    assert await answer(Handler(), "elicitation/create", ASKED) == ElicitResult("decline")
    with pytest.raises(InvalidParams, match=r"elicitation\.url"):
        await answer(Handler(), "elicitation/create", SENT)
    with pytest.raises(McpError, match="no model") as refused:
        await answer(Handler(), "sampling/createMessage", SAMPLE)
    assert refused.value.code == -32603


async def test_handler_may_declare_more_than_its_hooks() -> None:
    """A handler may declare capabilities beyond its hooks."""
    declared = ClientCapabilities(elicitation=ElicitationCapability())
    handler = ClientHandler()
    handler.capabilities = declared
    answering = HandlerRunner(handler)

    assert answering.capabilities == declared
    assert await answering.answer("elicitation/create", ASKED) == ElicitResult("decline")


async def test_handler_lists_roots_of_every_kind() -> None:
    """A root is a value, a mapping or a path."""

    class Handler(ClientHandler):
        def handle_list_roots(self) -> Any:
            return [Root("file:///a"), {"uri": "file:///b", "name": "B"}, Path("/c/d")]

    assert await answer(Handler(), "roots/list") == ListRootsResult(
        [Root("file:///a"), Root("file:///b", "B"), Root("file:///c/d", "d")]
    )


@pytest.mark.parametrize(
    "returned", [[{"uri": "https://a"}], [{"name": "no uri"}], "file:///a", [Path("a")]]
)
async def test_handler_with_roots_that_are_none_fails_the_request(returned: Any) -> None:
    """A value other than a list of file URIs is a defect of the hook; it is logged."""

    class Handler(ClientHandler):
        def handle_list_roots(self) -> Any:
            return returned

    with pytest.raises(InternalError, match="reference"):
        await answer(Handler(), "roots/list")


A, B = Root("file:///a"), Root("file:///b")


@pytest.mark.parametrize("returned", [(A, B), [A, B], ({"uri": "file:///a"}, B)])
async def test_roots_are_a_list_or_a_tuple(returned: Any) -> None:
    """Two roots in a tuple are both roots."""

    class Handler(ClientHandler):
        def handle_list_roots(self) -> Any:
            return returned

    assert await answer(Handler(), "roots/list") == ListRootsResult([A, B])


def test_hook_with_other_parameters_is_rejected() -> None:
    """When its class is defined, with the parameters that it needs."""
    with pytest.raises(
        ConfigurationError, match=r"Asked\.handle_url_elicitation must take \(self, "
    ):

        class Asked(ClientHandler):
            async def handle_url_elicitation(self, message: str) -> Any: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("said", "result"),
    [
        (Accepted({"name": "Bob", "age": 30}), ElicitResult("accept", {"name": "Bob", "age": 30})),
        ({"action": "accept", "content": {}}, ElicitResult("accept", {"name": "Ada"})),
        (Accepted(), ElicitResult("accept", {"name": "Ada"})),
        (Declined(), ElicitResult("decline")),
        (Cancelled(), ElicitResult("cancel")),
        ({"action": "decline", "content": {"name": "Bob"}}, ElicitResult("decline")),
        (ElicitResult("cancel"), ElicitResult("cancel")),
    ],
)
async def test_handler_form_is_answered(said: Any, result: ElicitResult) -> None:
    """Defaults are filled in, and only an accepted form has content."""
    form = Form(said)

    assert await answer(form, "elicitation/create", ASKED) == result
    assert form.asked == [("Who?", FORM)]


@pytest.mark.parametrize("said", ["yes", {"action": "maybe"}, Accepted({"age": 3}), None, object()])
async def test_handler_form_with_a_wrong_answer_fails_the_request(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid answer is not sent; the log has the reason."""
    with pytest.raises(InternalError, match="reference") as failed:
        await answer(Form(said), "elicitation/create", ASKED)

    assert failed.value.reference is not None
    assert failed.value.reference in caplog.text
    assert "handle_elicitation_create" in caplog.text


async def test_handler_form_of_a_broken_schema_is_the_servers_fault() -> None:
    """An unusable or remote schema is rejected before the hook runs."""
    form = Form(Accepted({}))

    with pytest.raises(InvalidParams, match="requestedSchema"):
        await answer(form, "elicitation/create", ElicitRequestParams("?", {"type": 3}))
    with pytest.raises(InvalidParams, match="nothing is ever fetched"):
        schema = {"$ref": "https://example.test/x.json"}
        await answer(form, "elicitation/create", ElicitRequestParams("?", schema))
    assert form.asked == []


async def test_handler_is_asked_only_in_modes_that_are_declared() -> None:
    """2025-11-25, client/elicitation, "Error Handling"."""

    class Url(ClientHandler):
        async def handle_url_elicitation(self, message: str, url: str) -> Any:
            return {"action": "accept", "content": {"not": "sent"}}

    with pytest.raises(InvalidParams, match=r"elicitation\.form"):
        await answer(Url(), "elicitation/create", ASKED)
    with pytest.raises(InvalidParams, match=r"elicitation\.url"):
        await answer(Form(Declined()), "elicitation/create", SENT)
    assert await answer(Url(), "elicitation/create", SENT) == ElicitResult("accept")


async def test_handler_samples_a_model() -> None:
    """Its result may be a mapping; the hook gets the server's params."""

    class Handler(ClientHandler):
        async def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
            return HELLO if params is SAMPLE else None

    assert await answer(Handler(), "sampling/createMessage", SAMPLE) == CreateMessageResult(
        role="assistant", content=TextContent("Hello."), model="m"
    )


async def test_handler_samples_with_tools_only_where_it_declares_that() -> None:
    """2025-11-25, client/sampling, "Tools in Sampling"."""

    class Handler(ClientHandler):
        def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
            content = [{"type": "tool_use", "id": "1", "name": "add", "input": {}}]
            return {**HELLO, "content": content, "stopReason": "toolUse"}

    class WithTools(Handler):
        sampling_tools = True

    params = CreateMessageRequestParams(
        messages=[], max_tokens=1, tools=[], tool_choice=ToolChoice("required")
    )
    with pytest.raises(InvalidParams, match=r"sampling\.tools"):
        await answer(Handler(), "sampling/createMessage", params)
    result = await answer(WithTools(), "sampling/createMessage", params)
    assert result.stop_reason == "toolUse"
    assert result.content[0].name == "add"


async def test_handler_may_refuse_with_an_error_of_its_own() -> None:
    """Its code, message and data are the server's to read."""

    class Handler(ClientHandler):
        async def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
            raise McpError("No budget", {"left": 0}, code=-7)

    with pytest.raises(McpError, match="No budget") as refused:
        await answer(Handler(), "sampling/createMessage", SAMPLE)
    assert (refused.value.code, refused.value.data) == (-7, {"left": 0})


async def test_handler_answers_other_requests_if_it_wants_to() -> None:
    """A method unknown to the protocol may have a hook, too."""

    class Handler(ClientHandler):
        async def handle_request(self, method: str, params: Any) -> Any:
            return {"method": method, **params}

    assert await answer(Handler(), "x/y", {"a": 1}) == {"method": "x/y", "a": 1}


async def test_handler_answers_all_input_requests() -> None:
    """The questions of a 2026-07-28 server go to the same hooks, and fail as one."""

    class Handler(Form):
        def handle_list_roots(self) -> Any:
            return [Root("file:///a")]

    answering = HandlerRunner(Handler(Declined()))
    requests: dict[str, InputRequest] = {"r": ListRootsRequest(), "e": ElicitRequest(ASKED)}

    assert await answering.answer_all(requests) == {
        "r": ListRootsResult([Root("file:///a")]),
        "e": ElicitResult("decline"),
    }
    with pytest.raises(InvalidParams, match="url"):
        await answering.answer_all({**requests, "u": ElicitRequest(SENT)})


class Sampler(ClientHandler):
    """Calls a model, with the approval of its user."""

    def __init__(self, model: Callable[[Any], Any], approve: Callable[[Any], Any]) -> None:
        self.model = model
        self.approving = approve

    def approve(self, subject: Sampled) -> Any:
        return self.approving(subject)

    def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
        return self.model(params)


async def test_handler_asks_for_approval_before_and_after() -> None:
    """It continues with the request, and the response, as edited by the user."""
    seen: list[Sampled] = []

    async def model(params: CreateMessageRequestParams) -> Any:
        return {**HELLO, "model": params.system_prompt}

    def approve(subject: Sampled) -> Any:
        seen.append(subject)
        if isinstance(subject, CreateMessageRequestParams):
            return {"messages": [], "maxTokens": 5, "systemPrompt": "Be kind."}
        return CreateMessageResult("assistant", TextContent("Bye."), model=subject.model)

    result = await answer(Sampler(model, approve), "sampling/createMessage", SAMPLE)

    assert [type(each) for each in seen] == [CreateMessageRequestParams, CreateMessageResult]
    assert result == CreateMessageResult("assistant", TextContent("Bye."), model="Be kind.")


@pytest.mark.parametrize("denied", [CreateMessageRequestParams, CreateMessageResult])
async def test_handler_denies_what_the_user_denies(denied: type) -> None:
    """With the specification's error, whether it is the request or the answer."""
    asked = []

    def model(params: CreateMessageRequestParams) -> Any:
        asked.append(params)
        return HELLO

    handler = Sampler(model, lambda each: not isinstance(each, denied))
    with pytest.raises(Denied, match="User rejected sampling request") as error:
        await answer(handler, "sampling/createMessage", SAMPLE)

    assert error.value.code == -1
    assert len(asked) == (denied is CreateMessageResult)


async def test_handler_takes_no_answer_for_no_approval() -> None:
    """An approval hook that returns None has not approved."""
    handler = Sampler(lambda _: HELLO, lambda _: None)

    with pytest.raises(InternalError):
        await answer(handler, "sampling/createMessage", SAMPLE)


def test_handler_is_an_instance_and_its_hooks_return() -> None:
    """A class, something else, or a hook that yields is refused when the client is made."""

    class Yields(ClientHandler):
        async def handle_list_roots(self) -> Any:
            yield {}

    with pytest.raises(ConfigurationError, match="instance of a ClientHandler"):
        Client("http://localhost/", handler=ClientHandler)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="handle_list_roots yields"):
        HandlerRunner(Yields())


class Opening(ClientHandler):
    """Opens every URL, and keeps it."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def handle_url_elicitation(self, message: str, url: str) -> Any:
        self.opened.append(url)
        return Accepted()


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "file:///etc/passwd", "data:,x", "", "not a url", "http://a.example/"],
)
async def test_client_refuses_dangerous_urls_before_the_hook(url: str) -> None:
    """With -32602; 2026-07-28, client/elicitation, "Safe URL Handling"."""
    handler = Opening()
    with pytest.raises(InvalidParams, match="url: the user"):
        await answer(handler, "elicitation/create", ElicitRequestParams("?", url=url, mode="url"))
    assert handler.opened == []


class Editor(Opening):
    """Opens its own URLs as well."""

    url_schemes = ("https", "vscode")


async def test_handler_may_allow_other_schemes() -> None:
    """`ClientHandler.url_schemes`; loopback is allowed without it."""
    handler = Editor()
    answering = HandlerRunner(handler)
    for url in ("vscode://a/b", "http://127.0.0.1:1/", "https://a.example/"):
        await answering.answer("elicitation/create", ElicitRequestParams("?", url=url, mode="url"))
    await answering.close()

    assert handler.opened == ["vscode://a/b", "http://127.0.0.1:1/", "https://a.example/"]
    for schemes in (["file"], "https"):
        with pytest.raises(ConfigurationError, match=r"Wrong\.url_schemes"):
            type("Wrong", (ClientHandler,), {"url_schemes": schemes})
