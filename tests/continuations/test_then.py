"""Waits that continue in a method: `elicit(...).then(self.book)`, and the same for every wait."""

import asyncio
import datetime
import enum
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import msgspec
import pydantic
import pytest

from genmcp import (
    Accepted,
    Cancelled,
    Channel,
    ConfigurationError,
    Continue,
    Declined,
    Done,
    Endpoint,
    ExternalJob,
    ExternalQueue,
    Failed,
    MemoryStore,
    Mux,
    Outcome,
    Prompt,
    PromptRequest,
    Resource,
    Run,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    elicit_url,
    job,
    roots,
    wait_for,
)
from genmcp.errors import ContractError
from genmcp.prompts import PromptRepo
from genmcp.resources import ResourceRepo
from genmcp.tasks import ExternalStatus
from tests.prompts.answering import ASKABLE, request
from tests.support.asgi import MODERN, PATIENCE, TASKS, Client, Connection
from tests.support.asking import AnsweringClient, failure_of, muxed, text_of

OPEN: list[Mux] = []


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while OPEN:
        await OPEN.pop().aclose()


class Room(msgspec.Struct):
    name: str
    seats: int = 1


class Wish(msgspec.Struct):
    breakfast: bool


YES = {"action": "accept", "content": {"breakfast": True}}
NO = {"action": "decline"}
NEITHER = {"action": "cancel"}


class Book(Tool[Room]):
    """Books a room."""

    name = "book"

    async def call(self, request: ToolRequest[Room], channel: Channel) -> Continue:
        channel.assigns["by"] = "phone"
        return elicit("With breakfast?", Wish).then(self.sure)

    async def sure(self, request: ToolRequest[Room], wish: Wish, channel: Channel) -> Continue:
        seats = request.arguments.seats
        return book_room.job(request.arguments.name, seats, wish.breakfast).then(self.booked)

    def booked(self, request: ToolRequest[Room], booking: "Booking", channel: Channel) -> str:
        assert isinstance(booking, Booking)
        assert isinstance(request.arguments, Room)
        return f"{booking.text} by {channel.assigns['by']}"


class Asks(Book):
    """Asks a question, and has an empty result."""

    name = "asks"

    async def call(self, request: ToolRequest[Room], channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.sure, self.not_sure)

    async def not_sure(
        self, request: ToolRequest[Room], answer: Declined | Cancelled, channel: Channel
    ) -> str:
        return f"{request.arguments.name}: {type(answer).__name__}"


class Booking(msgspec.Struct):
    text: str


@job
async def book_room(run: Run, name: str, seats: int, breakfast: bool) -> Booking:
    return Booking(f"{seats} in {name}, {'with' if breakfast else 'without'} breakfast")


def serving(*components: Any, **options: Any) -> Endpoint:
    kinds: dict[str, list[Any]] = {"tools": [], "prompts": [], "resources": []}
    for each in components:
        cls = each if isinstance(each, type) else type(each)
        kind = "resources"
        for base, known in ((Tool, "tools"), (Prompt, "prompts"), (PromptRepo, "prompts")):
            kind = known if issubclass(cls, base) else kind
        kinds[kind].append(each)
    OPEN.append(Mux(Suite(name="test", version="1", **kinds), **options))  # type: ignore[arg-type]
    return Endpoint(OPEN[-1])


async def call(app: Any, *answers: Any, version: str = MODERN, **arguments: Any) -> Connection:
    name = arguments.pop("tool", "book")
    return await request(app, version, "tools/call", *answers, name=name, arguments=arguments)


# The value that a method gets


@pytest.mark.parametrize("version", ASKABLE)
async def test_call_continues_in_methods_in_every_revision(version: str) -> None:
    """A method gets the typed arguments, the typed value, and the assigns of earlier steps."""
    answered = await call(serving(Book), YES, version=version, name="Fjord", seats=2)

    assert text_of(answered) == "2 in Fjord, with breakfast by phone"


async def test_task_continues_in_methods() -> None:
    """The client polls the task and answers its questions."""

    class Always(Book):
        name = "always"
        task = "always"

        async def call(self, request: ToolRequest[Room], channel: Channel) -> Continue:
            channel.assigns["by"] = "task"
            return book_room.job(request.arguments.name, 3, False).then(self.booked)

    client = Client(serving(Always), capabilities=TASKS)
    answer = await client.send(client.call("always", {"name": "Fjord"}))

    result = await completed(client, answer.json["result"]["taskId"])
    assert result["content"][0]["text"] == "3 in Fjord, without breakfast by task"


async def completed(client: Client, id: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            if answer.json["result"]["status"] == "completed":
                return answer.json["result"]["result"]
            await asyncio.sleep(0.001)


async def test_call_continues_in_another_process() -> None:
    """The name of the method is in the sealed state: any process with the secret can continue."""
    here, there = (muxed(Asks, secret="a secret that both processes have") for _ in range(2))
    client = AnsweringClient(here)
    pending = await client.send(client.call("asks", {"name": "Fjord"}))
    client.app = there

    (key,) = pending.json["result"]["inputRequests"]
    answered = await client.send(client.retry(pending, **{key: NO}))

    assert key == "sure"
    assert text_of(answered) == "Fjord: Declined"


class Waits(Tool):
    """Waits for *wait*, and returns the value that the method gets."""

    name = "waits"

    def __init__(self, wait: Any) -> None:
        self.wait = wait

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return self.wait().then(self.shown)

    async def shown(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return repr(value)


async def nine() -> int:
    return 9


def done() -> "futures.Future[int]":
    future: futures.Future[int] = futures.Future()
    future.set_result(8)
    return future


ROOT = {"roots": [{"uri": "file:///home"}]}
AGREED = {"action": "accept", "content": {}}


@pytest.mark.parametrize(
    ("wait", "answers", "shown"),
    [
        (lambda: wait_for(nine()), [], "9"),
        (lambda: wait_for(done()), [], "8"),
        (lambda: elicit("Sure?"), [AGREED], "{}"),
        (lambda: elicit_url("Go?", "https://x.org"), [AGREED], "None"),
        (roots, [ROOT], "[Root(uri='file:///home', name=None, meta=None)]"),
        (
            lambda: wait_for({"a": elicit("A?", Wish), "b": elicit("B?")}),
            [YES, AGREED],
            "{'a': Wish(breakfast=True), 'b': {}}",
        ),
    ],
)
async def test_every_kind_of_wait_continues_in_a_method(
    wait: Any, answers: list[Any], shown: str
) -> None:
    """The method gets the value of the wait, or the content of a form."""
    app = serving(Waits(wait))

    answered = await answer_all(app, answers)

    assert shown == text_of(answered)


async def answer_all(app: Any, answers: list[Any]) -> Connection:
    """Call `waits`, and answer all questions at once."""
    client = AnsweringClient(app)
    answer = await client.send(client.call("waits"))
    if answers:
        keys = answer.json["result"]["inputRequests"]
        answer = await client.send(client.retry(answer, **dict(zip(keys, answers, strict=True))))
    return answer


class Queue(ExternalQueue):
    """A queue whose jobs have all completed."""

    scheme = "queue"

    async def snapshot(self, ref: str) -> ExternalStatus:
        return ExternalStatus("completed", result={"text": f"{ref} done"})

    async def watch(self, ref: str) -> AsyncGenerator[ExternalStatus, None]:
        yield await self.snapshot(ref)

    async def cancel(self, ref: str) -> None: ...


async def test_external_job_continues_in_a_method() -> None:
    """Its result is converted to the annotated type."""

    class Follows(Waits):
        name = "follows"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return ExternalJob("queue", "7").then(self.typed)

        async def typed(self, request: ToolRequest, value: Booking, channel: Channel) -> str:
            return value.text

    app = serving(Follows(None), store=MemoryStore(), external=[Queue()])

    assert text_of(await call(app, tool="follows")) == "7 done"


# The value of a job is JSON, which is converted to the annotated type


@dataclass
class Point:
    x: int


class Size(TypedDict):
    width: int


@job
async def gives(run: Run, value: Any) -> Any:
    return value


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Named(Protocol):
    """A type that msgspec cannot convert to."""

    name: str


class Reads(Tool):
    """Has a method with an annotation for the value of a job."""

    name = "reads"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        how = request.arguments["how"]
        return gives.job(request.arguments["value"]).then(getattr(self, how))

    def point(self, request: ToolRequest, value: Point, channel: Channel) -> str:
        return repr(value)

    def sizes(self, request: ToolRequest, value: list[Size], channel: Channel) -> str:
        return repr(value)

    def model(self, request: ToolRequest, value: "Model", channel: Channel) -> str:
        return repr(value)

    def unread(self, request: ToolRequest, value: "NotDefined", channel: Channel) -> str:  # type: ignore[name-defined]  # noqa: F821
        return repr(value)

    def odd(self, request: ToolRequest, value: Point | Booking, channel: Channel) -> str:
        return repr(value)

    def day(self, request: ToolRequest, value: datetime.date, channel: Channel) -> str:
        return repr(value)

    def day_or_none(
        self, request: ToolRequest, value: datetime.date | None, channel: Channel
    ) -> str:
        return repr(value)

    def colour(self, request: ToolRequest, value: Colour, channel: Channel) -> str:
        return repr(value)

    def level(self, request: ToolRequest, value: Level, channel: Channel) -> str:
        return repr(value)

    def real(self, request: ToolRequest, value: float, channel: Channel) -> str:
        return repr(value)

    def whole(self, request: ToolRequest, value: int, channel: Channel) -> str:
        return repr(value)

    def protocol(self, request: ToolRequest, value: Named, channel: Channel) -> str:
        return repr(value)


class Model(pydantic.BaseModel):
    """A model."""

    x: int


@pytest.mark.parametrize(
    ("how", "value", "shown"),
    [
        ("point", {"x": 1}, "Point(x=1)"),
        ("sizes", [{"width": 3}], "[{'width': 3}]"),
        ("model", {"x": 1}, "Model(x=1)"),
        ("unread", {"x": 1}, "{'x': 1}"),
        ("odd", {"x": 1}, "{'x': 1}"),
        ("day", "2020-01-02", "datetime.date(2020, 1, 2)"),
        ("day_or_none", "2020-01-02", "datetime.date(2020, 1, 2)"),
        ("day_or_none", None, "None"),
        ("colour", "red", "<Colour.RED: 'red'>"),
        ("level", 2, "<Level.HIGH: 2>"),
        ("real", 2, "2.0"),
        ("whole", True, "True"),
        ("protocol", "a", "'a'"),
    ],
)
async def test_value_of_a_job_is_converted_to_its_type(how: str, value: Any, shown: str) -> None:
    """An annotation that cannot be resolved at run time is ignored: it may be for type checkers."""
    assert shown == text_of(await call(serving(Reads), tool="reads", how=how, value=value))


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("point", {"y": 1}),
        ("model", {"y": 1}),
        ("day", "today"),
        ("colour", "blue"),
        ("whole", "1"),
        ("whole", None),
    ],
)
async def test_value_of_another_type_is_a_contract_error(how: str, value: Any, caplog: Any) -> None:
    """The log has the fault and its place; the client gets a reference."""
    answered = await call(serving(Reads), tool="reads", how=how, value=value)

    assert answered.messages[-1]["error"]["code"] == -32603
    assert f"Reads.{how} (tool 'reads') cannot take the value of the wait" in caplog.text


# Declined, cancelled, failed


@pytest.mark.parametrize("version", ASKABLE)
@pytest.mark.parametrize(
    ("answer", "method", "default"),
    [
        (NO, "Fjord: Declined", "The user declined."),
        (NEITHER, "Fjord: Cancelled", "The user cancelled the question."),
    ],
)
async def test_declined_question_continues_in_the_second_method(
    answer: Any, method: str, default: str, version: str
) -> None:
    """The second method runs; without one the result is a plain text."""
    app = serving(Book, Asks)

    answered = await call(app, answer, version=version, tool="asks", name="Fjord")
    untold = await call(app, answer, version=version, name="Fjord")

    assert method == text_of(answered)
    assert default == text_of(untold)


async def test_one_declined_question_of_several_declines_the_wait() -> None:
    """The second method runs, and gets all answers."""
    wait = {"a": elicit("A?", Wish), "b": elicit("B?")}

    class Both(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return wait_for(wait).then(self.shown, self.refused)

        async def refused(self, request: ToolRequest, answers: Any, channel: Channel) -> str:
            return repr(answers)

    refused = await answer_all(serving(Both(None)), [YES, NO])
    default = await answer_all(serving(Waits(lambda: wait_for(wait))), [YES, NO])

    assert repr({"a": Accepted(Wish(True)), "b": Declined()}) == text_of(refused)
    assert text_of(default) == "The user declined."


async def test_otherwise_gets_the_answers_unconverted() -> None:
    """An annotation for one answer must not convert the dict of answers."""

    class Both(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            wait = wait_for({"a": elicit("A?", Wish), "b": elicit("B?")})
            return wait.then(self.shown, self.refused)

        async def refused(self, request: ToolRequest, answers: Declined, channel: Channel) -> str:
            return repr(answers)

    refused = await answer_all(serving(Both(None)), [YES, NEITHER])

    assert repr({"a": Accepted(Wish(True)), "b": Cancelled()}) == text_of(refused)


async def test_declined_question_needs_only_the_method_that_runs() -> None:
    """A release that renamed the first method can still handle a decline."""

    class Renamed(Asks):
        name = "asks"
        sure = None  # type: ignore[assignment]

    old, new = (muxed(each, secret="a secret that both have, of 32 b") for each in (Asks, Renamed))
    client = AnsweringClient(old)
    pending = await client.send(client.call("asks", {"name": "Fjord"}))
    client.app = new

    answered = await client.send(client.retry(pending, sure=NO))

    assert text_of(answered) == "Fjord: Declined"


async def test_declined_question_of_a_tool_with_data_is_an_error() -> None:
    """A text is not a valid result where an output schema requires data."""

    class Typed(Book):
        name = "typed"
        output_schema = Booking

    answered = await call(serving(Typed), NO, tool="typed", name="Fjord")

    assert failure_of(answered) == "The user declined."


@job
async def breaks(run: Run) -> str:
    raise ToolError("out of paper")


async def test_wait_that_failed_is_an_error_with_its_text() -> None:
    """The method does not run."""
    assert failure_of(await answer_all(serving(Waits(breaks.job)), [])) == "out of paper"


class Outcomes(Tool):
    """Has methods that take the outcome."""

    name = "outcomes"

    def call(self, request: ToolRequest, channel: Channel) -> Any:
        method = getattr(self, request.arguments["method"])
        if request.arguments["on"] == "job":
            return breaks.job().then(method)
        return elicit("Sure?").then(method)

    def by_name(self, request: ToolRequest, outcome: Any, channel: Channel) -> str:
        return repr(outcome)

    def by_type(self, request: ToolRequest, came: Outcome, channel: Channel) -> str:
        match came:
            case Failed(error):
                return f"failed: {error}"
            case Done(value):
                return f"done: {value}"


@pytest.mark.parametrize(
    ("method", "on", "answers", "shown"),
    [
        ("by_type", "job", [], "failed: out of paper"),
        ("by_type", "question", [AGREED], "done: Accepted(content={})"),
        ("by_name", "question", [NO], "Done(value=Declined())"),
    ],
)
async def test_method_may_take_the_outcome(
    method: str, on: str, answers: list[Any], shown: str
) -> None:
    """If its parameter is named `outcome` or annotated as one, it gets failures as well."""
    app = serving(Outcomes)

    answered = await call(app, *answers, tool="outcomes", method=method, on=on)

    assert shown == text_of(answered)


async def test_client_without_the_capability_gets_an_error() -> None:
    """-32021 with the capability, as when `continue_` raises it (2026-07-28)."""
    client = AnsweringClient(serving(Book), capabilities={})

    answer = await client.send(client.call("book", {"name": "Fjord"}))

    assert answer.json["error"]["code"] == -32021


async def test_method_may_give_an_empty_result() -> None:
    """None is an empty result, as from `call`, because the method was named explicitly."""

    class Quiet(Waits):
        async def shown(self, request: ToolRequest, value: Any, channel: Channel) -> None:  # type: ignore[override]
            return None

    answered = await answer_all(serving(Quiet(lambda: wait_for(nine()))), [])

    assert answered.json["result"]["content"] == []


# Methods in which a call cannot continue


class Wrong(Tool):
    """Passes a method to `then` that cannot be a step."""

    name = "wrong"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        method: Any = {
            "another tool's": Reads().point,
            "a function": nowhere,
            "two": self.two,
            "second": self.good,
            "private": self.__private,
        }[request.arguments["how"]]
        otherwise = nowhere if method == self.good else None
        return wait_for(never()).then(method, otherwise)

    async def two(self, request: ToolRequest, channel: Channel) -> None: ...

    async def good(self, request: ToolRequest, value: Any, channel: Channel) -> None: ...

    async def __private(self, request: ToolRequest, value: Any, channel: Channel) -> None: ...


async def never() -> None:
    raise AssertionError("it does not begin")


async def nowhere(request: Any, value: Any, channel: Any) -> None: ...


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("another tool's", r"then(Reads.point) must be given a method of Wrong"),
        ("a function", r"then(nowhere) must be given a method of Wrong"),
        ("two", "Wrong.two (tool 'wrong') must take (request, value, channel): too many"),
        ("second", "then(nowhere) must be given a method of Wrong"),
        ("private", "by its name: Python changes names that begin with two underscores, so use"),
    ],
)
async def test_method_that_cannot_continue_a_call_is_reported(
    how: str, advice: str, caplog: Any
) -> None:
    """The call fails with the name of the method; the awaitable never starts."""
    answered = await call(serving(Wrong), tool="wrong", how=how)

    assert answered.messages[-1]["error"]["code"] == -32603
    assert advice in caplog.text


async def test_step_that_names_a_wrong_method_is_reported(caplog: Any) -> None:
    """Also when a later step returns the wait."""

    class Later(Waits):
        async def shown(self, request: ToolRequest, value: Any, channel: Channel) -> Any:
            return wait_for(never()).then(nowhere)

    answered = await answer_all(serving(Later(lambda: wait_for(nine()))), [])

    assert answered.messages[-1]["error"]["code"] == -32603
    assert "Later.shown (tool 'waits'): then(nowhere) must be given a method of" in caplog.text


@pytest.mark.parametrize("method", [lambda request, value, channel: None, "sure", None])
async def test_method_without_a_name_is_rejected_by_then(method: Any) -> None:
    """`then` rejects it, because another process could not find it."""
    for wait in (wait_for(never()), elicit("Sure?")):
        with pytest.raises(ContractError, match="has no such name"):
            wait.then(method)


async def test_method_name_too_long_for_a_question_is_rejected() -> None:
    """The name is the key of the question. Other waits have no such limit."""

    async def method(request: Any, value: Any, channel: Any) -> None: ...

    method.__name__ = "a" * 65
    with pytest.raises(ContractError, match=r"at most 64 characters, .*; a{65} has 65"):
        elicit("Sure?").then(method)
    elicit("Sure?").then(nowhere, method)
    wait_for(done()).then(method)


async def test_second_method_without_a_name_is_refused() -> None:
    """The rule for the first method applies to the second."""
    unnamed: Any = 3
    with pytest.raises(ContractError, match="3 has no such name"):
        wait_for(never()).then(nowhere, unnamed)


async def test_method_of_the_class_continues_as_that_of_the_instance() -> None:
    """A method is found by its name."""

    class Named(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return wait_for(nine()).then(Waits.shown)

    assert text_of(await answer_all(serving(Named(None)), [])) == "9"


async def test_method_that_a_release_lacks_fails_the_call(caplog: Any) -> None:
    """Like a tag without a case in `continue_`."""

    class Old(Tool):
        name = "versioned"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return elicit("Sure?").then(self.gone)

        async def gone(self, request: ToolRequest, value: Any, channel: Channel) -> None: ...

    class New(Old):
        name = "versioned"
        gone = None  # type: ignore[assignment]

    old, new = (muxed(each, secret="a secret that both processes have") for each in (Old, New))
    client = AnsweringClient(old)
    pending = await client.send(client.call("versioned"))
    client.app = new
    answered = await client.send(client.retry(pending, gone=AGREED))

    assert answered.json["error"]["code"] == -32603
    assert "New has no method gone, in which this call continues (tool 'versioned')" in caplog.text


def test_tool_that_returns_a_wait_needs_somewhere_to_continue() -> None:
    """A class whose `call` is annotated to wait, but has no method for it, is rejected."""
    with pytest.raises(ConfigurationError, match=r"or pass a method to \.then\(\)"):

        class Nowhere(Tool):
            async def call(self, request: ToolRequest, channel: Channel) -> Continue:
                raise NotImplementedError

            def helper(self, text: str) -> str:
                raise NotImplementedError


def test_tool_that_continues_in_methods_may_be_held_over() -> None:
    """The result tool is listed for it, and `max_hold` applies, as with `continue_`."""
    holds = [
        Suite(name="test", version="1", tools=[each]).find("tools/call", "get_call_result")
        for each in (Book, Reads, Plain)
    ]

    assert [each is not None for each in holds] == [True, True, False]


class Plain(Tool):
    """Passes a method to `then` that is not a step."""

    name = "plain"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return self.helper("a", "b")

    def helper(self, a: str, b: str) -> str:
        return a + b

    other = 1


# Prompts and resources


class Letter(Prompt[Room]):
    """Writes a letter."""

    name = "letter"

    async def get(self, request: PromptRequest[Room], channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.written)

    async def written(self, request: PromptRequest[Room], wish: Wish, channel: Channel) -> str:
        return f"{request.arguments.name}, {wish.breakfast}"


class Letters(PromptRepo):
    """Letters to anyone."""

    prefix = "to/"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        return [], None

    async def get(self, name: str, arguments: Any, channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.written)

    async def written(self, request: PromptRequest, wish: Wish, channel: Channel) -> str:
        return f"{request.arguments['name']}, {wish.breakfast}"


class Page(Resource):
    """A page."""

    uri = "page://one"
    name = "page"

    async def read(self, uri: str, channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.written)

    async def written(self, uri: str, wish: Wish, channel: Channel) -> str:
        return f"{uri}, {wish.breakfast}"


class Pages(ResourceRepo):
    """Pages by number."""

    prefix = "pages://"
    name = "pages"

    def parse_uri(self, uri: str) -> int:
        return int(uri.rpartition("/")[2])

    async def read(self, number: int, channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.written)

    async def written(self, number: int, wish: Wish, channel: Channel) -> str:
        return f"{number + 1}, {wish.breakfast}"


ALL = (Letter, Letters, Page, Pages)


@pytest.mark.parametrize("version", ASKABLE)
@pytest.mark.parametrize(
    ("method", "params", "shown"),
    [
        ("prompts/get", {"name": "letter", "arguments": {"name": "Fjord"}}, "Fjord, True"),
        ("prompts/get", {"name": "to/me", "arguments": {"name": "Fjord"}}, "Fjord, True"),
        ("resources/read", {"uri": "page://one"}, "page://one, True"),
        ("resources/read", {"uri": "pages://7"}, "8, True"),
    ],
)
async def test_prompts_and_resources_continue_in_methods(
    method: str, params: Any, shown: str, version: str
) -> None:
    """A method of a prompt gets its typed arguments, one of a resource the key from `read`."""
    answered = await request(serving(*ALL), version, method, YES, **params)
    refused = await request(serving(*ALL), version, method, NO, **params)

    assert shown in answered.body.decode()
    assert refused.messages[-1]["error"]["message"] == "The user declined."


class Asking(Letter):
    """Writes another letter if the question is declined, or if a job fails."""

    name = "asking"

    async def get(self, request: PromptRequest[Room], channel: Channel) -> Continue:
        if request.arguments.name == "job":
            return breaks.job().then(self.refused)
        return elicit("With breakfast?", Wish).then(self.written, self.refused)

    async def refused(self, request: ToolRequest[Room], answer: Any, channel: Channel) -> str:
        return f"{request.arguments.name}: {answer!r}"


class AskedPage(Page):
    """A page that is another if the question is declined, or that needs a job."""

    uri = "asked://one"
    name = "asked"

    async def read(self, uri: str, channel: Channel) -> Continue:
        return elicit("With breakfast?", Wish).then(self.written, self.refused)

    async def refused(self, uri: str, answer: Any, channel: Channel) -> str:
        return f"{uri}: {answer!r}"


class Printed(Page):
    """A page whose job fails."""

    uri = "printed://one"
    name = "printed"

    async def read(self, uri: str, channel: Channel) -> Continue:
        return breaks.job().then(self.written)


@pytest.mark.parametrize("version", ASKABLE)
@pytest.mark.parametrize(
    ("method", "params", "shown"),
    [
        ("prompts/get", {"name": "asking", "arguments": {"name": "Fjord"}}, "Fjord: Declined()"),
        ("resources/read", {"uri": "asked://one"}, "asked://one: Declined()"),
    ],
)
async def test_declined_prompts_and_resources_run_otherwise(
    method: str, params: Any, shown: str, version: str
) -> None:
    """The second method gets the same first argument as the first, as in tools."""
    answered = await request(serving(Asking, AskedPage), version, method, NO, **params)

    assert shown in answered.body.decode()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "asking", "arguments": {"name": "job"}}),
        ("resources/read", {"uri": "printed://one"}),
    ],
)
async def test_failed_job_fails_prompts_and_resources(method: str, params: Any) -> None:
    """They fail with the text as an error, since their results have no `isError`."""
    answered = await request(serving(Asking, Printed), MODERN, method, **params)

    assert "out of paper" in answered.messages[-1]["error"]["message"]
