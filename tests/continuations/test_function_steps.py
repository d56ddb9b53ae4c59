"""Functions under `@tool` and `@prompt` that wait, and continue in steps."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from genmcp import (
    Cancelled,
    Channel,
    ConfigurationError,
    Continue,
    Declined,
    Done,
    Endpoint,
    Failed,
    Mux,
    Outcome,
    Run,
    Suite,
    ToolError,
    elicit,
    job,
    prompt,
    tool,
    wait_for,
)
from tests.prompts.answering import ASKABLE, request
from tests.support.asgi import MODERN, TASKS, Client, Connection, until
from tests.support.asking import AnsweringClient, failure_of, muxed, text_of

OPEN: list[Mux] = []


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while OPEN:
        await OPEN.pop().aclose()


def serving(*tools: Any, prompts: Any = ()) -> Endpoint:
    OPEN.append(Mux(Suite(name="test", version="1", tools=tools, prompts=prompts)))
    return Endpoint(OPEN[-1])


async def call(app: Any, *answers: Any, version: str = MODERN, **arguments: Any) -> Connection:
    name = arguments.pop("tool", "book")
    return await request(app, version, "tools/call", *answers, name=name, arguments=arguments)


class Wish(msgspec.Struct):
    breakfast: bool


YES = {"action": "accept", "content": {"breakfast": True}}
NO = {"action": "decline"}


@job
async def reserve(run: Run, room: str, seats: int, breakfast: bool) -> str:
    if room == "none":
        raise ToolError("there is no such room")
    return f"{seats} in {room}, breakfast: {breakfast}"


@tool
async def book(room: str, channel: Channel, seats: int = 1) -> Continue:
    """Books a room."""
    channel.assigns["by"] = "phone"
    return elicit(f"Book {room}?", Wish).then(sure, not_sure)


@book.step
async def sure(wish: Wish, room: str, seats: int) -> Continue:
    return reserve.job(room, seats, wish.breakfast).then(reserved)


@book.step
def not_sure(answer: Declined | Cancelled, *, room: str, line: Channel) -> str:
    return f"{room} is left to others by {line.assigns['by']}: {answer}"


@book.step
def reserved(text: str, channel: Channel) -> str:
    return f"{text}, by {channel.assigns['by']}"


@pytest.mark.parametrize("version", ASKABLE)
async def test_function_continues_in_its_steps(version: str) -> None:
    """A step gets the value, the arguments it names, and the channel."""
    agreed = await call(serving(book), YES, version=version, room="Fjord", seats=2)
    declined = await call(serving(book), NO, version=version, room="Fjord")
    failed = await call(serving(book), YES, version=version, room="none")

    assert text_of(agreed) == "2 in Fjord, breakfast: True, by phone"
    assert text_of(declined) == "Fjord is left to others by phone: Declined()"
    assert failure_of(failed) == "there is no such room"


async def test_function_is_called_as_without_its_decorator() -> None:
    """The function and its steps can be tested without a server."""
    channel: Any = type("Line", (), {"assigns": {}})()

    assert "<Continue 'sure'" in repr(await book("Fjord", channel))
    assert "<Continue 'reserved'" in repr(await sure(Wish(True), "Fjord", 1))


async def test_function_continues_in_another_process() -> None:
    """The other process finds the step by its name."""
    here, there = (muxed(book, secret="a secret that both processes have") for _ in range(2))
    client = AnsweringClient(here)
    pending = await client.send(client.call("book", {"room": "Fjord"}))
    client.app = there

    answered = await client.send(client.retry(pending, sure=NO))

    assert text_of(answered) == "Fjord is left to others by phone: Declined()"


class Stage:
    """The outcomes that a tool of this module has received."""

    saw: list[Any]
    go: asyncio.Event


@job
async def endless(run: Run) -> None:
    Stage.saw.append(run.id)
    await asyncio.Event().wait()


@tool(
    task="always",
    requires_tasks=True,
    promote_after=1.0,
    max_hold=2.0,
    result_ttl=3.0,
    single_use=True,
    on_worker_lost="rerun",
    formats=False,
    extra_arguments="ignore",
    on_cancel=lambda channel: Stage.saw.append(channel.run_id),
)
async def lasting(text: str) -> Continue:
    """Is a task."""
    return endless.job().then(lasted)


@lasting.step
async def lasted(value: None) -> None: ...


async def test_function_may_be_a_task() -> None:
    """The decorator has every option of the class, including `visible` and `on_cancel`."""
    Stage.saw = []
    client = Client(serving(lasting), capabilities=TASKS)

    refused = await Client(client.app).send(Client(client.app).call("lasting", {"text": "a"}))
    answer = await client.send(client.call("lasting", {"text": "a", "more": 1}))
    task = answer.json["result"]
    await until(lambda: len(Stage.saw) == 1, pause=0.001)
    await client.send(client.request("tasks/cancel", {"taskId": task["taskId"]}, id=2))
    await until(lambda: len(Stage.saw) == 2, pause=0.001)

    assert refused.json["error"]["code"] == -32021
    assert task["ttlMs"] == 3000
    assert Stage.saw[0] == Stage.saw[1]


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    async def buy(self, item: str) -> Continue:
        """Buys something."""
        return elicit("Sure?").then(self.bought)

    @buy.step
    async def bought(self, answer: dict[str, Any], item: str) -> str:
        return f"{item} of {self.name}"


async def test_method_continues_in_its_steps() -> None:
    """The steps run on the instance whose method was registered."""
    yes = {"action": "accept", "content": {}}
    for name in ("Ada", "Bo"):
        answered = await call(serving(Shop(name).buy), yes, tool="buy", item="tea")
        assert text_of(answered) == f"tea of {name}"


@tool
async def shows() -> Continue:
    """Shows how its job ended."""
    return reserve.job("none", 1, False).then(ended)


@shows.step
async def ended(came: Outcome) -> str:
    match came:
        case Failed(error):
            return f"failed: {error}"
        case Done(value):
            return f"done: {value}"


async def test_step_may_take_the_outcome() -> None:
    """A step gets Done or Failed if it is annotated so, like a method."""
    assert text_of(await call(serving(shows), tool="shows")) == "failed: there is no such room"


@prompt
async def letter(to: str) -> Continue:
    """Writes a letter."""
    return elicit("With breakfast?", Wish).then(written)


@letter.step
async def written(wish: Wish, to: str) -> str:
    return f"To {to}: {wish.breakfast}"


@pytest.mark.parametrize("version", ASKABLE)
async def test_prompt_function_continues_in_its_steps(version: str) -> None:
    """Prompts can wait and continue like tools."""
    params = {"name": "letter", "arguments": {"to": "Ada"}}

    answered = await request(serving(prompts=[letter]), version, "prompts/get", YES, **params)

    assert "To Ada: True" in answered.body.decode()


# Errors


async def never() -> None:
    raise AssertionError("it does not begin")


async def nowhere(value: None) -> None: ...


@tool
async def loses(how: str) -> Any:
    """Returns a wait that nothing follows."""
    return Continue("tag", never()) if how == "tag" else wait_for(never()).then(nowhere)


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("tag", "it has no step in which to continue: decorate a function with @loses.step"),
        (
            "then",
            "then(nowhere) must be given a step of loses, which any process finds by its name",
        ),
    ],
)
async def test_function_without_the_step_fails_with_an_advice(
    how: str, advice: str, caplog: Any
) -> None:
    """Without an annotation, each call fails with an advice; the awaitable never starts."""
    answered = await call(serving(loses), tool="loses", how=how)

    assert answered.messages[-1]["error"]["code"] == -32603
    assert advice in caplog.text


async def unknown(value: int, rooom: str) -> None: ...
async def takes_nothing() -> None: ...
async def only_channel(channel: Channel) -> None: ...
async def channel_first(channel: Channel, wish: Wish) -> None: ...
async def by_keyword(*, value: int) -> None: ...
async def by_keywords(**values: int) -> None: ...
async def by_position(value: int, room: str, /) -> None: ...
async def description(value: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (unknown, "unknown must take the value of the wait first, .*; rooom is neither"),
        (takes_nothing, "takes_nothing must .*; too many positional arguments"),
        (only_channel, "only_channel must .*; its first parameter, channel, is the Channel"),
        (channel_first, "channel_first must .*; its first parameter, channel, is the Channel"),
        (by_keyword, "by_keyword must .*; too many positional arguments"),
        (by_keywords, "by_keywords must .*; too many positional arguments"),
        (by_position, "by_position must .*positional.only"),
        (description, "a step cannot be called description"),
        (sure, "a step cannot be called sure"),
        (Shop, "@book.step is for functions, not for <class"),
    ],
)
def test_step_that_cannot_be_called_is_rejected(function: Any, advice: str) -> None:
    """At registration. Otherwise each call would fail after the user has answered."""
    with pytest.raises(ConfigurationError, match=advice):
        book.step(function)


def test_function_with_steps_may_be_held_over() -> None:
    """The tool for results of held-over calls is listed, as for a class with `continue_`."""

    @tool
    async def plain() -> str:
        return "plain"

    suites = [Suite(name="test", version="1", tools=[each]) for each in (book, plain)]

    found = [each.find("tools/call", "get_call_result") for each in suites]
    assert [each is not None for each in found] == [True, False]
