"""Structs, dataclasses, models and other types in jobs, their saved states, and assigns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    Failed,
    Mux,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    gather,
)
from genmcp.errors import ConfigurationError, ContractError
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.values import restore_types, store_types
from genmcp.testing import connect
from tests.support.asking import YES, AnsweringClient


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Part(pydantic.BaseModel):
    """A model with a date, which JSON lacks."""

    name: str
    made: date


class Order(pydantic.BaseModel):
    """A strict model with aliases and a computed field, which it would not accept back."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", alias_generator=to_camel)

    placed_at: datetime
    parts: list[Part] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.parts)


class Person(pydantic.BaseModel):
    email: str


@pydantic.dataclasses.dataclass
class Price:
    amount: Decimal
    currency: str = pydantic.Field(default="EUR", max_length=3)


@dataclass
class Shelf:
    """A dataclass that contains models."""

    parts: list[Part]
    size: Size


class Box(msgspec.Struct):
    """A struct that contains a dataclass."""

    shelf: Shelf
    weight: float = 0.0


class Label(TypedDict):
    printed: date


class Point(NamedTuple):
    x: int
    y: int


CHAIN = Part(name="chain", made=date(2026, 1, 2))
ORDER = Order.model_validate({"placedAt": datetime(2026, 1, 2, tzinfo=UTC), "parts": [CHAIN]})
SHELF = Shelf([CHAIN], Size.LARGE)

# By name: a type, and a value of it.
KINDS: dict[str, tuple[Any, Any]] = {
    "model": (Order, ORDER),
    "struct": (Box, Box(SHELF, 1.5)),
    "dataclass": (Shelf, SHELF),
    "dataclass of pydantic": (Price, Price(Decimal("9.90"))),
    "enum": (Size, Size.SMALL),
    "date": (date, date(2026, 1, 2)),
    "typed dict": (Label, {"printed": date(2026, 1, 2)}),
    "named tuple": (Point, Point(1, 2)),
    "bytes": (bytes, b"\xff\x00"),
    "path": (Path, Path("/bikes")),
    "list of models": (list[Part], [CHAIN]),
    "dict of structs": (dict[str, Box], {"a": Box(SHELF)}),
    "keys that are numbers": (dict[int, Size], {1: Size.SMALL}),
    "set": (set[int], {1, 2}),
    "tuple": (tuple[Part, Box], (CHAIN, Box(SHELF))),
    "union of models": (Part | Person, Person(email="ann@example.com")),
    "optional model": (Part | None, None),
}


def carrying(name: str, kind: Any) -> tuple[Any, type[Tool]]:
    """Return a job with values of *kind* in all places, and a tool that waits for it."""

    @job(name=f"carry {name}", retries=1, backoff=0.0)
    async def carry(run: Run[kind], value: kind) -> kind:
        if run.attempt == 1:
            await run.save(value)
            raise ValueError("the first attempt fails")
        assert (run.saved, type(run.saved)) == (value, type(value))
        return run.saved

    class Carry(Tool):
        """Passes a value through a job."""

        name = "carry"

        async def call(self, request: ToolRequest, channel: Channel) -> Continue:
            return carry.job(KINDS[name][1]).then(self.done)

        async def done(self, request: ToolRequest, value: kind, channel: Channel) -> str:
            expected = KINDS[name][1]
            assert (value, type(value)) == (expected, type(expected))
            return f"{type(value).__name__}"

    return carry, Carry


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_value_has_its_type_everywhere_in_a_job(kind: str, tmp_path: Path) -> None:
    """As argument, in the saved state, as result, and in the method in which the call continues."""
    _, tool = carrying(kind, KINDS[kind][0])
    mux = Mux(
        Suite(name="s", version="1.0", tools=[tool]),
        store=f"sqlite:///{tmp_path / 'jobs.db'}",
        secret="a secret of the processes",
    )
    async with connect(mux) as client:
        text = (await client.call("carry")).text
    await mux.aclose()

    assert text == type(KINDS[kind][1]).__name__


def test_arguments_of_a_job_are_stored_as_json(kind: str) -> None:
    """Other programs can read them, and `genmcp jobs show` prints them."""
    carry, _ = carrying(kind, KINDS[kind][0])
    stored = msgspec.json.encode(carry.job(KINDS[kind][1]).arguments)

    assert carry.arguments_of(msgspec.json.decode(stored)) == {"value": KINDS[kind][1]}


# Assigns


class Shop(Tool):
    """Asks a question while it keeps values of every type."""

    name = "shop"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        channel.assigns["order"] = ORDER
        channel.assigns["rest"] = {"boxes": [Box(SHELF), CHAIN], "size": Size.SMALL, "n": 1}
        return elicit("Sure?").then(self.sure)

    async def sure(
        self, request: ToolRequest, content: dict[str, Any], channel: Channel
    ) -> Continue:
        return quick.job().then(self.done)

    async def done(self, request: ToolRequest, value: int, channel: Channel) -> str:
        assert channel.assigns["order"] == ORDER
        assert channel.assigns["rest"] == {
            "boxes": [Box(SHELF), CHAIN],
            "size": Size.SMALL,
            "n": 1,
        }
        return "kept"


@job
async def quick(run: Run) -> int:
    return 1


async def test_assigns_have_their_types_after_each_wait() -> None:
    """In the state that the client sends back with its answer, and in the store with a job."""
    suite = Suite(name="s", version="1.0", tools=[Shop])
    muxes = [Mux(suite, secret="a secret of the processes") for _ in range(2)]
    client = AnsweringClient(Endpoint(muxes[0]))

    pending = await client.send(client.call("shop"))
    client.app = Endpoint(muxes[1])
    answer = await client.send(client.retry(pending, sure=YES))
    for mux in muxes:
        await mux.aclose()

    assert answer.json["result"]["content"][0]["text"] == "kept"


@pytest.mark.parametrize(
    "value", [ORDER, Box(SHELF), SHELF, Price(Decimal("1.5")), Size.LARGE, Point(1, 2), {1, 2}]
)
def test_assign_is_restored_in_another_process(value: Any) -> None:
    """Within lists and dicts, too. The class is found by its name."""
    stored = store_types("assigns", {"a": [value], "plain": [1, None, "x"]})
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(stored))

    assert restore_types(packed) == {"a": [value], "plain": [1, None, "x"]}


def test_assign_of_an_unknown_class_waits_for_another_process() -> None:
    """During a rolling deployment. A step of which a process lacks the code is deferred."""
    stored = store_types("assigns", Point(1, 2))
    name, value = msgspec.msgpack.decode(stored.data)
    other = msgspec.msgpack.Ext(1, msgspec.msgpack.encode((name + "V2", value)))
    changed = msgspec.msgpack.Ext(1, msgspec.msgpack.encode((name, ["text", 2])))

    with pytest.raises(ConfigurationError, match=r"no class .*:PointV2 here"):
        restore_types(other)
    with pytest.raises(ConfigurationError, match=r":Point has changed"):
        restore_types(changed)


class Lathe:
    """A class without a JSON form."""


@dataclass
class Workshop:
    lathes: list[Any]


def of_a_function() -> object:
    @dataclass
    class Local:
        number: int

    return Local(1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (of_a_function(), "assigns is Local, which other processes cannot find: define the class"),
        ({"a": [Lathe()]}, r"assigns\.a\[0\]: Lathe has no JSON form; use a dataclass"),
        (Workshop([1, Lathe()]), r"assigns\.lathes\[1\] is Lathe, which has no JSON form"),
    ],
)
def test_assign_without_a_json_form_is_refused(value: object, message: str) -> None:
    """When the call begins to wait; the message has the type, the place and the remedy."""
    with pytest.raises(ContractError, match=message):
        store_types("assigns", value)


# Outcomes


@job
async def assemble(run: Run, name: str) -> Part:
    if name == "broken":
        raise ValueError("no such part")
    return Part(name=name, made=date(2026, 1, 2))


@job
async def pack(run: Run) -> Box:
    return Box(SHELF)


class Assembly(Tool):
    """Takes the outcomes of jobs in every form."""

    name = "assembly"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return assemble.job("chain").then(self.one)

    async def one(
        self, request: ToolRequest, outcome: Done[Part] | Failed, channel: Channel
    ) -> Continue:
        assert outcome == Done(CHAIN)
        return gather(assemble.job("chain"), pack.job()).then(self.values)

    async def values(
        self, request: ToolRequest, value: tuple[Part, Box], channel: Channel
    ) -> Continue:
        assert value == (CHAIN, Box(SHELF))
        jobs = assemble.job("chain"), assemble.job("broken")
        return gather(*jobs, return_outcomes=True).then(self.outcomes)

    async def outcomes(
        self, request: ToolRequest, value: list[Done[Part] | Failed], channel: Channel
    ) -> Continue:
        assert value[0] == Done(CHAIN)
        assert isinstance(value[1], Failed)
        jobs = {"chain": assemble.job("chain")}
        return gather(jobs, return_outcomes=True).then(self.by_name)

    async def by_name(
        self, request: ToolRequest, value: dict[str, Done[Part] | Failed], channel: Channel
    ) -> Continue:
        assert value == {"chain": Done(CHAIN)}
        return assemble.job("broken").then(self.failed)

    async def failed(
        self, request: ToolRequest, outcome: Done[Part] | Failed, channel: Channel
    ) -> str:
        assert isinstance(outcome, Failed)
        return "done"


async def test_outcomes_have_the_types_of_the_jobs() -> None:
    """As type checkers infer them from `.then`."""
    async with connect(Suite(name="s", version="1.0", tools=[Assembly])) as client:
        assert (await client.call("assembly")).text == "done"


# Refusals


def of_parameter() -> Any:
    async def f(run: Run, lathe: Lathe) -> None: ...

    return f


def of_part_of_a_parameter() -> Any:
    async def f(run: Run, lathes: dict[str, list[Lathe]]) -> None: ...

    return f


def of_result() -> Any:
    async def f(run: Run) -> Iterator[int]:
        return iter(())

    return f


def of_state() -> Any:
    async def f(run: Run[Callable[[], None]]) -> None: ...

    return f


def of_ambiguous_union() -> Any:
    async def f(run: Run, value: Box | Shelf) -> None: ...

    return f


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (of_parameter, "refused: parameter lathe: Lathe has no JSON form; use a dataclass"),
        (of_part_of_a_parameter, "refused: parameter lathes: Lathe has no JSON form"),
        (of_result, "refused: the result: Iterator has no JSON form"),
        (of_state, "refused: Run: Callable has no JSON form"),
        (of_ambiguous_union, "refused: parameter value: Type unions may not contain"),
    ],
)
def test_type_without_a_json_form_is_refused_at_once(
    function: Callable[[], Any], message: str
) -> None:
    """When the job is declared."""
    with pytest.raises(ConfigurationError, match=message):
        job(name="refused")(function())


@job
async def untyped(run: Run, value: Any = None) -> None: ...


@job
async def typed(run: Run, value: Workshop) -> None: ...


@job
async def ordered(run: Run, order: Order) -> None: ...


def wrong(function: Any, argument: object) -> object:
    """Make a job that a type checker rejects."""
    return function.job(argument)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: untyped.job({"a": [SHELF]}),
            r"value\.a\[0\] is Shelf, which is not JSON: annotate the parameter of the job",
        ),
        (
            lambda: typed.job(Workshop([Lathe()])),
            r"value\.lathes\[0\] is Lathe, which has no JSON form: use a dataclass",
        ),
        (lambda: wrong(typed, {"lathe": 1}), "value is dict, which does not fit Workshop"),
        (lambda: wrong(ordered, CHAIN), "order is Part, which does not fit Order"),
    ],
)
def test_argument_without_a_json_form_is_refused(make: Any, message: str) -> None:
    """In the hook that makes the job, as for any wrong argument."""
    with pytest.raises(TypeError, match=message):
        make()


@job
async def returns_parts(run: Run, what: str) -> Workshop:
    values: dict[str, Any] = {
        "lathe": Workshop([1, Lathe()]),
        "order": ORDER,
        "surrogate": Workshop(["\ud800"]),
    }
    found: Workshop = values[what]
    return found


@job
async def returns_anything(run: Run, what: str):  # type: ignore[no-untyped-def]
    return {"lathe": [Lathe()], "order": ORDER}[what]


@job
async def saves(run: Run, what: str) -> None:
    await run.save({"lathe": Lathe()})


class Workbench(Tool):
    """Runs a job by its name."""

    name = "bench"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        jobs = {"typed": returns_parts, "untyped": returns_anything, "saves": saves}
        return jobs[request.arguments["job"]].job(request.arguments["what"]).then(self.done)

    async def done(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return str(value["count" if "count" in value else "parts"])


@pytest.mark.parametrize(
    ("name", "what", "text"),
    [
        ("typed", "lathe", "lathes[1] is Lathe, which has no JSON form: use a dataclass"),
        ("typed", "order", "returns_parts is Order, which does not fit Workshop"),
        ("typed", "surrogate", "returns_parts cannot be stored"),
        ("untyped", "lathe", "[0] is Lathe, which has no JSON form: use a dataclass"),
        ("saves", "lathe", "state.lathe is Lathe, which is not JSON: annotate the first parameter"),
    ],
)
async def test_value_without_a_json_form_fails_the_call(name: str, what: str, text: str) -> None:
    """The result has the type, the place and the remedy."""
    async with connect(Suite(name="s", version="1.0", tools=[Workbench])) as client:
        result = await client.call("bench", {"job": name, "what": what})

    assert result.is_error
    assert text in result.text


async def test_result_of_an_unannotated_job_may_be_a_model() -> None:
    """A method that does not annotate its value either gets it as JSON."""
    async with connect(Suite(name="s", version="1.0", tools=[Workbench])) as client:
        result = await client.call("bench", {"job": "untyped", "what": "order"})

    assert "chain" in result.text
