"""Likely wrong first tries: each gets an error that names what to write instead."""

import logging
from collections.abc import Callable
from typing import Annotated, Any

import fastapi
import pytest
from fastapi.security import OAuth2PasswordBearer
from starlette.requests import Request

from genmcp import (
    Channel,
    ConfigurationError,
    Depends,
    Endpoint,
    Prompt,
    Resource,
    Run,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    job,
    resource,
    tool,
)
from genmcp.errors import ContractError
from genmcp.resources import ResourceRepo
from genmcp.testing import connect


@job
async def transcribe(run: Run, minutes: int = 1) -> str:
    return f"{minutes} minutes"


def user_of(request: Request) -> str:
    return str(request.user)


async def plain(part: str) -> str:
    return part


def job_without_run() -> Any:
    @job  # type: ignore[arg-type]
    async def resize(minutes: int) -> None: ...


def tool_with_own_parameters() -> Any:
    class Add(Tool):
        name = "add"

        def call(self, a: int, b: int, c: int) -> int:  # type: ignore[override]
            return a + b + c


def tool_with_swapped_parameters() -> Any:
    class Add(Tool):
        name = "add"

        def call(self, channel: Channel, request: ToolRequest) -> str:  # type: ignore[override]
            return ""


def validate_without_channel() -> Any:
    class Add(Tool):
        name = "add"

        def validate(self, request: ToolRequest) -> Any:  # type: ignore[override]
            return request


def prompt_without_request() -> Any:
    class Greet(Prompt):
        name = "greet"

        def get(self, name: str) -> str:  # type: ignore[override]
            return name


def repository_with_variables() -> Any:
    class Books(ResourceRepo):
        template = "books://{shelf}/{id}"

        def read(self, shelf: str, id: str, channel: Channel) -> str:  # type: ignore[override]
            return id


def depends_on_request() -> Any:
    @tool
    def whoami(user: Annotated[str, Depends(user_of)]) -> str:
        return user


def depends_on_a_login_of_fastapi() -> Any:
    @tool
    def whoami(token: Annotated[str, fastapi.Depends(OAuth2PasswordBearer("token"))]) -> str:
        return token


def depends_on_a_header() -> Any:
    def agent(user_agent: Annotated[str, fastapi.Header()]) -> str:
        return user_agent

    @tool
    def whoami(agent: Annotated[str, fastapi.Depends(agent)]) -> str:
        return agent


def channel_without_annotation() -> Any:
    @tool
    def greet(name: str, channel) -> str:  # type: ignore[no-untyped-def]
        return name


def tool_that_yields() -> Any:
    @tool
    async def count() -> Any:
        yield 1


def decorator_on_a_class() -> Any:
    @tool
    class Add: ...


def resource_without_uri() -> Any:
    @resource  # type: ignore[arg-type]
    def stock() -> str:
        return ""


def resource_without_the_parameter() -> Any:
    @resource("stock://{part}")
    def stock(number: str) -> str:
        return number


def resource_with_another_parameter() -> Any:
    @resource("stock://{part}")
    def stock(part: str, uri: str) -> str:
        return uri


def resource_with_a_wildcard() -> Any:
    @resource("stock://*")
    def stock(uri: str) -> str:
        return uri


def resource_without_scheme() -> Any:
    @resource("{part}")
    def stock(part: str) -> str:
        return part


def list_of_one_resource() -> Any:
    @resource("stock://all", list=lambda cursor, channel: [])
    def stock() -> str:
        return ""


def schema_with_another_property() -> Any:
    schema = {"type": "object", "properties": {"part": {}, "parts": {"type": "array"}}}
    return tool(name="order", input_schema=schema)(plain)


@pytest.mark.parametrize(
    ("write", "advice"),
    [
        (job_without_run, r"resize needs a first parameter for the Run: write resize\(run: Run, "),
        (tool_with_own_parameters, r"Add\.call must take \(self, request, channel\), not \(self, "),
        (tool_with_swapped_parameters, r"must take \(self, request, channel\), not \(self, chan"),
        (validate_without_channel, r"Add\.validate must take \(self, request, channel\)"),
        (prompt_without_request, r"Greet\.get must take .*; the arguments are request\.arguments"),
        (repository_with_variables, r"Books\.read must take \(self, key, channel\)"),
        (depends_on_request, r"no HTTP request here: .*Endpoint\(copy_assigns=.*channel\.assigns"),
        (depends_on_a_login_of_fastapi, r"no HTTP request here: .*Endpoint\(copy_assigns="),
        (depends_on_a_header, r"no HTTP request here: .*Endpoint\(copy_assigns="),
        (channel_without_annotation, "annotate channel as Channel"),
        (tool_that_yields, r"return one result, and report progress with channel\.progress"),
        (decorator_on_a_class, "@tool is for functions, not for <class"),
        (resource_without_uri, r'write @resource\("stock://\{part\}"\)'),
        (resource_without_the_parameter, r"has the variable part, and the function no such param"),
        (resource_with_another_parameter, r"uri is not .*: the URI is channel\.request\.params\.u"),
        (
            resource_with_a_wildcard,
            r"write stock://\{\+path\} .* give the function a parameter p",
        ),
        (resource_without_scheme, "begin it with scheme:"),
        (list_of_one_resource, "has no variables: remove list"),
        (schema_with_another_property, r"has the property 'parts': add a parameter of that name"),
        (lambda: Suite("s", tools=[plain]), "or a function under @tool"),
        (lambda: Suite("s", resources=[plain]), "or a function under @resource"),
        (lambda: Suite("s", tools=[Tool]), "Tool has no name"),
        (
            lambda: Suite("s", resources=[Resource("x://{id}", "text")]),
            "a template needs a function, which gets its variables",
        ),
        (lambda: Endpoint([plain]), r"must be an instance of a Server \(a Suite\)"),  # type: ignore[arg-type]
    ],
)
def test_definition_says_what_to_write(write: Callable[[], Any], advice: str) -> None:
    """At the definition or the registration, not at the first call."""
    with pytest.raises(ConfigurationError, match=advice):
        write()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tool", "import the decorator from genmcp"),
        ("resource", "import the decorator from genmcp"),
        ("add_tool", r"write suite\.add\(component\)"),
    ],
)
def test_names_of_other_servers_say_what_to_write(name: str, advice: str) -> None:
    """`@mcp.tool` is what a user of another framework types."""
    with pytest.raises(AttributeError, match=advice):
        getattr(Suite("shop"), name)
    assert not hasattr(Suite, name)


@tool
async def awaits_a_question() -> str:
    return str(await elicit("Sure?"))  # type: ignore[misc]


@tool
async def awaits_a_job() -> str:
    return str(await transcribe.job(3))  # type: ignore[misc]


@tool
async def calls_a_job() -> str:
    return await transcribe(3)  # type: ignore[arg-type]


@tool
async def calls_a_job_by_name() -> str:
    return await transcribe(minutes=3)


@tool
async def returns_a_question() -> Any:
    return elicit("Sure?")


@tool
def returns_a_job() -> Any:
    return transcribe.job(3)


@tool
async def logs_by_level(channel: Channel) -> None:
    await channel.info("Done.")  # type: ignore[attr-defined]


@tool
async def reports_progress(channel: Channel) -> None:
    await channel.report_progress(1, 2)  # type: ignore[attr-defined]


@tool
def asks_the_channel(channel: Channel) -> Any:
    return channel.elicit("Sure?")  # type: ignore[attr-defined]


QUESTION = "return elicit(...).then(self.method)"
JOB = "return transcribe.job(...).then(self.method)"


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (awaits_a_question, QUESTION),
        (awaits_a_job, JOB),
        (calls_a_job, JOB),
        (calls_a_job_by_name, JOB),
        (returns_a_question, QUESTION),
        (returns_a_job, JOB),
        (logs_by_level, 'write await channel.log("info", data)'),
        (reports_progress, "write await channel.progress("),
        (asks_the_channel, QUESTION),
    ],
)
async def test_failed_call_logs_what_to_write(
    wrong: Any, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a reference; the log has the exception with the advice."""
    async with connect(Suite("wrong", tools=wrong)) as client:
        try:
            assert (await client.call(wrong.__name__)).is_error
        except Exception as error:
            assert "reference" in str(error)

    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert advice in str(caplog.text), record


def test_hook_may_take_any_parameters() -> None:
    """What accepts the parameters of the base class is fine, such as a wrapper's."""

    class Wrapped(Tool):
        name = "any"

        def call(*args: Any) -> str:
            return "fine"

    Suite("any", tools=Wrapped)


async def test_direct_call_of_a_job_takes_a_run() -> None:
    """A test calls the function with an object in place of the Run."""
    run: Any = None
    assert await transcribe(run, 2) == "2 minutes"
    with pytest.raises(ContractError, match="is a job"):
        await transcribe()
