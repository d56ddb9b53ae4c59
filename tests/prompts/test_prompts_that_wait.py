"""Prompts that wait for something, or ask their client, before they have their messages."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from genmcp import (
    Accepted,
    CapabilityMissing,
    Channel,
    ConfigurationError,
    Continue,
    Declined,
    Done,
    Endpoint,
    Failed,
    Mux,
    Outcome,
    Prompt,
    PromptRequest,
    Run,
    Suite,
    elicit,
    job,
    prompt,
)
from genmcp.errors import PromptNotFound
from genmcp.prompts import PromptRepo
from genmcp.testing import connect
from tests.prompts.answering import ASKABLE, request
from tests.support.asgi import MODERN, Connection


class City(msgspec.Struct):
    """Where to go."""

    name: str


class Stay(msgspec.Struct):
    """How long to stay."""

    days: int = 1


class Trip(Prompt[Stay]):
    """Plans a trip to where the user wants to go."""

    name = "trip"

    async def get(self, request: PromptRequest[Stay], channel: Channel) -> Continue:
        channel.assigns["asked"] = "kindly"
        return Continue("city", elicit("Which city?", City))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        days = channel.request.arguments.days
        match tag, outcome:
            case "city", Done(Accepted(city)):
                return Continue("sure", elicit(f"{city.name} for {days + 1} days?"))
            case "sure", Done(Accepted()):
                return f"Asked {channel.assigns['asked']}: {days!r} days."
            case _, Done(Declined()):
                return []
            case _, Failed(error):
                raise error


def serving(*prompts: Any, **options: Any) -> Endpoint:
    return Endpoint(Suite(name="test", version="1", prompts=prompts), **options)


def texts(answered: Connection) -> list[str]:
    """Return the texts of the messages that came."""
    return [each["content"]["text"] for each in answered.messages[-1]["result"]["messages"]]


OSLO = {"action": "accept", "content": {"name": "Oslo"}}
YES = {"action": "accept", "content": {}}
NO = {"action": "decline"}


@pytest.mark.parametrize("version", ASKABLE)
async def test_prompt_sends_questions_on_every_revision(version: str) -> None:
    """One class without a revision continues with each answer of its client, step by step."""
    params = {"name": "trip", "arguments": {"days": "4"}}

    answered = await request(serving(Trip), version, "prompts/get", OSLO, YES, **params)

    assert texts(answered) == ["Asked kindly: 4 days."]


@pytest.mark.parametrize("version", ASKABLE)
async def test_prompt_may_end_without_messages(version: str) -> None:
    """A step may return the values that `get` may return; `[]` is a result."""
    answered = await request(serving(Trip), version, "prompts/get", NO, name="trip")

    assert texts(answered) == []


async def test_missing_capability_of_a_prompt_is_named() -> None:
    """CapabilityMissing that is raised again is -32021 with the capability (2026-07-28)."""
    suite = Suite(name="test", version="1", prompts=[Trip])

    async with connect(suite) as client:
        with pytest.raises(Exception, match="elicitation") as caught:
            await client.prompt("trip")

    assert caught.value.code == -32021  # type: ignore[attr-defined]
    assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}  # type: ignore[attr-defined]


class Late(Prompt):
    """Waits for the given wait, and returns the outcome."""

    name = "late"

    def __init__(self, on: Any) -> None:
        self.on = on

    def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> Any:
        return Continue("waited", self.on())

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return f"{tag}: {outcome} {channel.request.arguments}"


async def later() -> str:
    await asyncio.sleep(0)
    return "here"


@job
async def work(run: Run, words: str) -> str:
    return words.upper()


@pytest.mark.parametrize("version", ASKABLE)
@pytest.mark.parametrize(
    ("on", "value"), [(later, "here"), (lambda: work.job(words="done"), "DONE")]
)
async def test_prompt_waits_for_work(on: Any, value: str, version: str) -> None:
    """An awaitable and a job bring a prompt its value; its hooks may be `def`."""
    app = serving(Late(on))
    try:
        answered = await request(app, version, "prompts/get", name="late", arguments={"a": "b"})
    finally:
        await app.aclose()

    assert texts(answered) == [f"waited: Done(value={value!r}) {{'a': 'b'}}"]


class Library(PromptRepo):
    """Letters to a recipient named by the user, with exceptions."""

    prefix = "letter/"

    async def list(self, cursor: Any, channel: Channel) -> Any:
        return []

    async def get(
        self, name: str, arguments: Mapping[str, str], channel: Channel
    ) -> Continue | None:
        return Continue("who", elicit("To whom?", City)) if name.startswith("letter/") else None

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match outcome:
            case Done(Accepted(City("Rome"))):
                raise PromptNotFound("somewhere else")
            case Done(Accepted(city)):
                request = channel.request
                return f"{request.params.name} to {city.name}, {request.arguments}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ASKABLE)
async def test_prompt_of_a_repository_sends_questions(version: str) -> None:
    """Its `continue_` finds the name in the request's params, and the texts in its arguments."""
    params = {"name": "letter/long", "arguments": {"tone": "kind"}}

    answered = await request(serving(Library), version, "prompts/get", OSLO, **params)

    assert texts(answered) == ["letter/long to Oslo, {'tone': 'kind'}"]


async def test_prompt_not_found_after_a_wait() -> None:
    """PromptNotFound from `continue_` is the error; None is not."""
    rome = {"action": "accept", "content": {"name": "Rome"}}

    gone = await request(serving(Library), MODERN, "prompts/get", rome, name="letter/x")
    nothing = await request(serving(Library), MODERN, "prompts/get", NO, name="letter/x")

    assert gone.json["error"]["code"] == -32602
    assert nothing.json["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("given", "where"), [(Trip, r"Trip.continue_ (prompt 'trip')"), (Library, "(prompts letter/*)")]
)
async def test_unmatched_tag_of_a_prompt_is_an_error(
    given: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unmatched `match` is an error that names tag and outcome, not an empty prompt."""
    params = {"name": "trip" if given is Trip else "letter/x"}

    answered = await request(serving(given), MODERN, "prompts/get", {"action": "cancel"}, **params)

    assert answered.json["error"]["code"] == -32603
    assert "returned None for tag " in caplog.text
    assert f"{where} returned" in caplog.text
    assert "and Done: add a case for them, or return [] for an empty result" in caplog.text


async def test_invalid_value_after_a_wait_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An invalid value of `continue_` is reported by name."""

    class Odd(Trip):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            return 5

    answered = await request(serving(Odd), MODERN, "prompts/get", NO, name="trip")

    assert answered.json["error"]["code"] == -32603
    assert "Odd.continue_ (prompt 'trip') returned int is no message" in caplog.text


def hopeless() -> tuple[Any, list[Any]]:
    """Return prompts of each kind that wait without a continuation; and their coroutines."""
    made: list[Any] = []

    def step() -> Any:
        made.append(later())
        return Continue("never", made[-1])

    class Class(Prompt):
        name = "x"

        async def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> Any:
            return step()

    class Repo(PromptRepo):
        prefix = "x"

        def list(self, cursor: Any, channel: Channel) -> Any: ...

        async def get(self, name: str, arguments: Any, channel: Channel) -> Any:
            return step()

    @prompt(name="x")
    async def function() -> Any:
        return step()

    return (Class, Repo, function), made


@pytest.mark.parametrize("number", range(3))
async def test_prompt_without_continuation_fails_when_it_waits(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A Continue without a hook or step to continue in fails one request; nothing is awaited."""
    kinds, made = hopeless()

    answered = await request(serving(kinds[number]), MODERN, "prompts/get", name="x")

    assert answered.json["error"]["code"] == -32603
    what = ("continue_: write one", "continue_: write one", "step in which to continue")[number]
    assert f"returned Continue: it has no {what}" in caplog.text
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


async def test_state_of_a_prompt_without_continue_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A state for a prompt that no longer waits is an error."""

    class Plain(Prompt):
        name = "trip"

        async def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> str:
            return "plain"

    suite = Suite(name="test", version="1", prompts=[Trip])
    replaced = Suite(name="test", version="1", prompts=[Plain])
    now = [Endpoint(Mux(each, secret="s" * 32)) for each in (suite, replaced)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await now.pop(0)(scope, receive, send)

    answered = await request(app, MODERN, "prompts/get", OSLO, name="trip")

    assert answered.json["error"]["code"] == -32603
    assert "Plain has no continue_ (prompt 'trip')" in caplog.text


def test_prompt_that_waits_needs_a_step() -> None:
    """It is reported when the class is made, and of a function when that is registered."""
    with pytest.raises(ConfigurationError, match=r"Waits\.get is annotated to return Continue"):

        class Waits(Prompt):
            async def get(
                self, request: PromptRequest[dict[str, str]], channel: Channel
            ) -> str | Continue:
                raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"Repo\.get is annotated to return Continue"):

        class Repo(PromptRepo):
            async def get(self, name: str, arguments: Any, channel: Channel) -> "Continue | None":
                raise NotImplementedError

    @prompt
    async def waiting() -> Continue:
        raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"waiting is annotated to return Continue"):
        Suite(name="test", version="1", prompts=[waiting])


async def test_prompt_continue_has_no_default() -> None:
    """A hook that is not implemented cannot be called."""
    nothing: Any = None

    for kind in (Prompt(), PromptRepo()):
        with pytest.raises(NotImplementedError):
            kind.continue_("x", Failed(CapabilityMissing({})), nothing)
