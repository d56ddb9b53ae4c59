"""Tools that wait, with the types that checkers infer. Checked by test_checkers, not run.

Each line with an ignore comment is a wrong use that both checkers report.
"""

from asyncio import Future
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from msgspec import Struct
from pydantic import BaseModel

from genmcp import (
    Accepted,
    Cancelled,
    Channel,
    Continue,
    Declined,
    Done,
    ExternalJob,
    Failed,
    Job,
    Outcome,
    Prompt,
    PromptRequest,
    Resource,
    Run,
    Tool,
    ToolRequest,
    elicit,
    elicit_url,
    gather,
    job,
    prompt,
    roots,
    sample,
    tool,
    wait_for,
)
from genmcp.core.waiting import Wait
from genmcp.protocol.client_features import CreateMessageResult, Root
from genmcp.question import Question


class City(Struct):
    name: str


class Street(Struct):
    name: str


class House(TypedDict):
    number: int


@job
async def look_up(run: Run, city: str) -> House:
    return {"number": 1}


@job(timeout=60)
def count(run: Run) -> int:
    return 1


class Tenant(BaseModel):
    name: str


@dataclass
class Lease:
    tenant: Tenant
    months: int


@job
async def let(run: Run[Lease], tenant: Tenant, street: Street) -> Lease:
    assert_type(run.saved, Lease | None)
    await run.save(Lease(tenant, 1))
    await run.save(tenant)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return run.saved or Lease(tenant, 12)


async def search(city: str) -> int:
    return 1


class Waits(Tool[City]):
    name = "waits"

    async def call(self, request: ToolRequest[City], channel: Channel) -> Continue:
        assert_type(elicit("Where?", Street), Question[Street])
        assert_type(elicit("Sure?"), Question[dict[str, Any]])
        assert_type(elicit_url("Where?", "https://example.com"), Question[None])
        assert_type(sample("Where?", max_tokens=5), Question[CreateMessageResult])
        assert_type(roots(), Question[list[Root]])
        assert_type(look_up.job("Oslo"), Job[House])
        assert_type(count.job(), Job[int])
        assert_type(wait_for(search("Oslo")), Wait[int])
        assert_type(wait_for(Future[int]()), Wait[int])
        assert_type(wait_for({"where": elicit("Where?", Street)}), Wait[dict[str, Any]])
        assert_type(gather(count.job(), look_up.job("Oslo")), Wait[tuple[int, House]])
        assert_type(gather(*[count.job(), count.job()]), Wait[list[int]])
        assert_type(gather(count.job(), count.job(), count.job()), Wait[list[int]])
        assert_type(elicit("Where?", Street).then(self.found), Continue)
        let_it = let.job(Tenant(name="Ann"), street=Street("Main"))
        assert_type(let_it, Job[Lease])
        assert_type(gather(let_it, count.job()), Wait[tuple[Lease, int]])
        assert_type(gather(let_it, return_outcomes=True), Wait[list[Done[Lease] | Failed]])

        elicit("Where?", Street).then(self.found, self.not_found)
        elicit("Where?", Street).then(Waits.found)
        elicit("Where?").then(self.filled_in)
        roots().then(self.listed)
        look_up.job("Oslo").then(self.built)
        count.job().then(self.counted)
        wait_for(search("Oslo")).then(self.counted)
        wait_for({"where": elicit("Where?", Street)}).then(self.filled_in)
        ExternalJob("queue", "1").then(self.counted)
        count.job().then(self.any_outcome)
        count.job().then(self.typed_outcome)
        let_it.then(self.let)
        let_it.then(self.outcome_of_lease)
        gather(let_it, let_it).then(self.all_let)
        gather(let_it, return_outcomes=True).then(self.all_outcomes)

        let.job("Ann", Street("Main"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        let_it.then(self.counted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        let_it.then(self.typed_outcome)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        count.job().then(self.let)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        elicit("Where?", Street).then(self.counted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        elicit("Where?", Street).then(Waits.counted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        elicit("Where?").then(self.found)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        look_up.job("Oslo").then(self.counted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        count.job().then(self.built)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        wait_for(search("Oslo")).then(self.found)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        look_up.job("Oslo").then(self.typed_outcome)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        look_up.job(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        wait_for(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        return count.job().then(self.counted)

    async def found(self, request: ToolRequest[City], street: Street, channel: Channel) -> str:
        assert_type(request.arguments, City)
        return street.name

    def not_found(
        self, request: ToolRequest[City], answer: Declined | Cancelled, channel: Channel
    ) -> None: ...

    def filled_in(
        self, request: ToolRequest[City], answers: dict[str, Any], channel: Channel
    ) -> None: ...

    def listed(self, request: ToolRequest[City], found: list[Root], channel: Channel) -> str:
        return found[0].uri

    def built(self, request: ToolRequest[City], house: House, channel: Channel) -> int:
        return house["number"]

    def let(self, request: ToolRequest[City], lease: Lease, channel: Channel) -> str:
        return lease.tenant.name

    def outcome_of_lease(
        self, request: ToolRequest[City], outcome: Done[Lease] | Failed, channel: Channel
    ) -> int:
        assert_type(outcome.result(), Lease)
        return outcome.result().months

    def all_let(
        self, request: ToolRequest[City], leases: tuple[Lease, Lease], channel: Channel
    ) -> int:
        return leases[0].months

    def all_outcomes(
        self, request: ToolRequest[City], found: list[Done[Lease] | Failed], channel: Channel
    ) -> int:
        return len(found)

    def counted(self, request: ToolRequest[City], number: int, channel: Channel) -> int:
        return number

    def any_outcome(self, request: ToolRequest[City], outcome: Outcome, channel: Channel) -> str:
        match outcome:
            case Done(Accepted(content)):
                return str(content)
            case Done(value):
                return str(value)
            case Failed(error):
                return str(error)

    def typed_outcome(
        self, request: ToolRequest[City], outcome: Done[int] | Failed, channel: Channel
    ) -> int:
        assert_type(outcome.result(), int)
        return outcome.result()


@tool
async def book(city: str) -> Continue:
    elicit("Where?", Street).then(sure)
    look_up.job(city).then(moved)
    wait_for(search(city)).then(settled)
    count.job().then(done)

    elicit("Where?", Street).then(settled)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    look_up.job(city).then(sure)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wait_for(search(city)).then(sure)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return elicit("Where?", Street).then(sure, declined)


@book.step
async def sure(street: Street, city: str, channel: Channel) -> str:
    return f"{street.name}, {city}"


@book.step
def moved(house: House, city: str) -> int:
    return house["number"]


@book.step
async def settled(number: int) -> str:
    return str(number)


@book.step
async def done(outcome: Done[int] | Failed) -> int:
    return outcome.result()


@book.step
async def declined(answer: Declined | Cancelled, city: str) -> str:
    return city


class Shop:
    @tool
    async def buy(self, item: str) -> Continue:
        elicit("Where?", Street).then(self.paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return elicit("Where?", Street).then(self.ordered, self.kept)

    @buy.step
    async def ordered(self, street: Street, item: str) -> Continue:
        return count.job().then(self.paid)

    @buy.step
    def paid(self, cents: int, item: str) -> str:
        return f"{item} for {cents}"

    @buy.step
    def kept(self, answer: Declined | Cancelled) -> str:
        return "nothing"


@prompt
async def trip(city: str) -> Continue:
    elicit("Where?", Street).then(far)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return elicit("Where?", Street).then(there)


@trip.step
async def there(street: Street, city: str) -> str:
    return f"{street.name}, {city}"


@trip.step
async def far(miles: int) -> str:
    return str(miles)


class Guide(Prompt[City]):
    name = "guide"

    async def get(self, request: PromptRequest[City], channel: Channel) -> Continue:
        elicit("Where?", Street).then(self.to_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return elicit("Where?", Street).then(self.to_street)

    async def to_street(
        self, request: PromptRequest[City], street: Street, channel: Channel
    ) -> str:
        return street.name

    async def to_number(self, request: PromptRequest[City], number: int, channel: Channel) -> str:
        return str(number)


class Map(Resource):
    name = "map"
    uri = "map:///{city}"

    async def read(self, key: str, channel: Channel) -> Continue:
        count.job().then(self.drawn)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return look_up.job("Oslo").then(self.drawn)

    async def drawn(self, key: str, house: House, channel: Channel) -> str:
        return str(house["number"])


async def steps_keep_their_signatures() -> None:
    assert_type(await book("Oslo"), Continue)
    assert_type(await settled(1), str)
    assert_type(moved({"number": 1}, "Oslo"), int)
    assert_type(Shop().paid(1, "nuts"), str)
    await settled("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
