"""Questions of calls that wait for a job, to clients without tasks.

Such a call runs as a record in the store. The process with the open response follows the record and
forwards its questions.
"""

from typing import Any

import pytest

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Failed,
    Outcome,
    Run,
    Tool,
    ToolRequest,
    elicit,
    job,
)
from tests.support.asgi import MODERN, serving
from tests.support.asking import YES, AnsweringClient, text_of


@job(name="asking.weigh")
async def weigh(run: Run, what: str) -> int:
    return len(what)


@job(name="asking.lift")
async def lift(run: Run, weight: int) -> str:
    return f"lifted {weight}"


class Lift(Tool):
    """Runs a job, asks two questions, and runs another job."""

    name = "lift"

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue("weighed", weigh.job(what=request.arguments["what"]))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        self.outcomes.append(outcome)
        match tag, outcome:
            case "weighed", Done(weight):
                channel.assigns["weight"] = weight
                return Continue("sure", {"sure": elicit(f"Lift {weight}?"), "now": elicit("Now?")})
            case "sure", Done({"sure": Accepted(), "now": Accepted()}):
                return Continue("lifted", lift.job(weight=channel.assigns["weight"]))
            case "lifted", Done(text):
                return text
            case _, Failed(error):
                return f"{type(error).__name__}: {error}"
        return "Left alone."


async def test_question_of_a_job_is_an_input_required_result() -> None:
    """2026-07-28: the result is `input_required`; the retry answers and waits for the rest."""
    tool = Lift()
    endpoint = serving(tool)
    client = AnsweringClient(endpoint)

    pending = await client.send(client.call("lift", {"what": "stone"}))
    part = await client.send(client.retry(pending, sure=YES))
    lifted = await client.send(client.retry(part, now=YES))
    retried = await client.send(client.retry(part, now={"action": "decline"}))
    await endpoint.aclose()

    messages = [q["params"]["message"] for q in pending.json["result"]["inputRequests"].values()]
    assert messages == ["Lift 5?", "Now?"]
    assert list(part.json["result"]["inputRequests"]) == ["now"]
    assert text_of(lifted) == "lifted 5"
    # A second answer to the same question is late: it gets the outcome of the first.
    assert text_of(retried) == "lifted 5"
    assert len(tool.outcomes) == 3


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_question_of_a_job_is_sent_on_the_stream_of_its_call(version: str) -> None:
    """Before 2026-07-28 it is a request on the stream of the call."""
    endpoint = serving(Lift)
    client = await AnsweringClient.begin(endpoint, version)
    async with client.open(client.call("lift", {"what": "stone"})) as call:
        for _ in range(2):
            await client.respond(await call.message(), YES)
        await call.over()
    await endpoint.aclose()

    assert text_of(call) == "lifted 5"


async def test_question_of_a_job_fails_with_the_client_error() -> None:
    """If the client responds with an error, the call in the store continues with that failure."""
    endpoint = serving(Lift)
    client = await AnsweringClient.begin(endpoint, "2025-11-25")
    async with client.open(client.call("lift", {"what": "stone"})) as call:
        await client.refuse(await call.message(), "nobody is here")
        await call.over()
    await endpoint.aclose()

    assert text_of(call) == "WorkRaised: nobody is here"


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_question_of_a_job_fails_without_the_capability(version: str) -> None:
    """The missing capability may be known long before there is a question."""
    endpoint = serving(Lift)
    client = await AnsweringClient.begin(endpoint, version, capabilities={})

    answer = await client.send(client.call("lift", {"what": "stone"}))
    await endpoint.aclose()

    assert text_of(answer).startswith("CapabilityMissing: ")


async def test_question_of_a_job_fails_once_the_capability_is_gone() -> None:
    """A retry without the capability is not asked again, and the call in the store ends, too."""
    tool = Lift()
    endpoint = serving(tool)
    client = AnsweringClient(endpoint)
    pending = await client.send(client.call("lift", {"what": "stone"}))

    retried = client.retry(pending, sure=YES)
    retried["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {}
    unable = await client.send(retried)
    late = await client.send(client.retry(pending, sure=YES, now=YES))
    await endpoint.aclose()

    assert text_of(unable).startswith("CapabilityMissing: ")
    assert text_of(unable) == text_of(late)
    assert len(tool.outcomes) == 2
