"""The `requestState` that a client sends back: 2026-07-28, basic/patterns, MRTR, points 4 to 6."""

from typing import Any

import pytest

from genmcp import Channel, Limits, Outcome, ToolRequest, elicit, roots
from tests.support.asgi import Connection
from tests.support.asking import ROOTS, YES, AnsweringClient, Waits, muxed, text_of
from tests.support.clock import Clock

SECRET = "one secret of many letters"


def asks(arguments: Any) -> Any:
    return {"sure": elicit("Sure?"), "where": roots()}


ANSWERS = {"sure": YES, "where": ROOTS}


def refused(answer: Connection, message: str) -> bool:
    error = answer.json["error"]
    return (error["code"], message in error["message"]) == (-32602, True)


async def test_state_opens_in_any_process_with_the_secret() -> None:
    """The process that asked keeps nothing, and may have ended."""
    waits = Waits(asks)
    client = AnsweringClient(muxed(Waits(asks), secret=SECRET))
    pending = await client.send(client.call("wait", {"x": 1}))

    client.app = muxed(waits, secret=["a newer secret of many letters", SECRET])
    answered = await client.send(client.retry(pending, **ANSWERS))

    assert text_of(answered).startswith("{'sure': Accepted")
    assert len(waits.outcomes) == 1


def changed(state: str) -> str:
    """Return a state with one letter changed."""
    middle = len(state) // 2
    return state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]


@pytest.mark.parametrize(
    "forge",
    [changed, lambda state: "", lambda state: "x", lambda state: state[:-4], lambda state: "é" * 9],
)
async def test_state_that_is_forged_is_refused(forge: Any, caplog: Any) -> None:
    """The attempt is logged; the tool does not run."""
    waits = Waits(asks)
    client = AnsweringClient(muxed(waits))
    pending = await client.send(client.call("wait"))

    retried = client.retry(pending, **ANSWERS)
    retried["params"]["requestState"] = forge(retried["params"]["requestState"])
    answer = await client.send(retried)

    assert refused(answer, "Invalid requestState")
    assert "a requestState was rejected" in caplog.text
    assert not waits.outcomes


@pytest.mark.parametrize("brings", [{}, ANSWERS])
async def test_state_of_another_secret_is_refused_and_logged(brings: Any, caplog: Any) -> None:
    """E.g. processes that should share a secret, but each generate one: the log has the remedy."""
    client = AnsweringClient(muxed(Waits(asks)))
    pending = await client.send(client.call("wait"))

    client.app = muxed(Waits(asks))
    answer = await client.send(client.retry(pending, **brings))

    assert refused(answer, "Invalid requestState")
    assert "another secret" in caplog.text


async def test_state_of_another_audience_is_refused() -> None:
    """Two mounts with one secret reject each other's states."""
    client = AnsweringClient(muxed(Waits(asks), secret=SECRET, audience="one"))
    pending = await client.send(client.call("wait"))

    client.app = muxed(Waits(asks), secret=SECRET, audience="two")

    assert refused(await client.send(client.retry(pending, **ANSWERS)), "Invalid requestState")


@pytest.mark.parametrize(("first", "second"), [("ada", "bob"), ("ada", None), (None, "ada")])
async def test_state_of_another_principal_is_refused(first: Any, second: Any) -> None:
    """Point 5: the state is bound to the authenticated principal; anonymous counts as one."""
    waits = Waits(asks)
    client = AnsweringClient(muxed(waits), who=first)
    pending = await client.send(client.call("wait"))
    client.scope = {"who": second}

    assert refused(await client.send(client.retry(pending, **ANSWERS)), "Invalid requestState")
    assert not waits.outcomes

    client.scope = {"who": first}
    assert (await client.send(client.retry(pending, **ANSWERS))).json["result"][
        "resultType"
    ] == "complete"


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        ({"x": 1}, {"x": 2}, False),
        ({"x": 1}, {}, False),
        ({"x": 1}, {"x": 1, "y": None}, False),
        ({"x": 1, "y": [1]}, {"y": [1], "x": 1}, True),
        ({}, None, True),
    ],
)
async def test_state_of_other_arguments_is_refused(before: Any, after: Any, fits: bool) -> None:
    """Point 5: the state has a digest of the parameters, independent of their order."""
    client = AnsweringClient(muxed(Waits(asks)))
    pending = await client.send(client.call("wait", before))

    retried = client.retry(pending, **ANSWERS)
    retried["params"]["arguments"] = after
    if after is None:
        del retried["params"]["arguments"]
    answer = await client.send(retried)

    assert refused(answer, "Invalid requestState") if not fits else "result" in answer.json


async def test_state_of_another_tool_is_refused() -> None:
    """Even if both tools ask the same question."""
    client = AnsweringClient(muxed(Waits(asks), Waits(asks, name="other")))
    pending = await client.send(client.call("wait"))

    retried = client.retry(pending, **ANSWERS)
    retried["params"]["name"] = "other"

    assert refused(await client.send(retried), "Invalid requestState")


async def test_sealed_value_of_another_kind_is_rejected() -> None:
    """A sealed value of another kind is not a state."""
    client = AnsweringClient(muxed(Waits(asks), secret=SECRET))
    legacy = await AnsweringClient.begin(client.app, "2025-11-25")
    pending = await client.send(client.call("wait"))

    retried = client.retry(pending, **ANSWERS)
    retried["params"]["requestState"] = legacy.session

    assert refused(await client.send(retried), "Invalid requestState")


async def test_state_expires() -> None:
    """After `Limits.input_timeout` seconds. The error states that the client may start over."""
    clock = Clock(1000.0)
    client = AnsweringClient(muxed(Waits(asks), limits=Limits(input_timeout=60), clock=clock))
    pending = await client.send(client.call("wait"))

    clock.now += 61
    answer = await client.send(client.retry(pending, **ANSWERS))

    assert refused(answer, "has expired: send the request again without it")


async def test_state_may_be_used_again_by_default() -> None:
    """Point 5, the warning: by default a state may be used more than once."""
    waits = Waits(asks)
    client = AnsweringClient(muxed(waits))
    pending = await client.send(client.call("wait"))

    for _ in range(2):
        assert "result" in (await client.send(client.retry(pending, **ANSWERS))).json

    assert len(waits.outcomes) == 2


async def test_state_of_a_single_use_tool_is_accepted_once(caplog: Any) -> None:
    """Point 5, the warning: with `single_use`. An incomplete answer does not count."""
    waits = Waits(asks, single_use=True)
    client = AnsweringClient(muxed(waits))
    pending = await client.send(client.call("wait"))

    part = await client.send(client.retry(pending, sure=YES))
    assert part.json["result"]["resultType"] == "input_required"
    assert "result" in (await client.send(client.retry(part, where=ROOTS))).json
    for spent in (pending, part):
        answer = await client.send(client.retry(spent, **ANSWERS))
        assert refused(answer, "was used already")

    assert len(waits.outcomes) == 1
    assert "which is single-use, came twice" in caplog.text


async def test_used_state_stays_used() -> None:
    """A new state of the call expires before the record of used states does."""
    clock, waits = Clock(1000.0), Waits(asks, single_use=True)
    client = AnsweringClient(muxed(waits, limits=Limits(input_timeout=60), clock=clock))
    pending = await client.send(client.call("wait"))
    assert "result" in (await client.send(client.retry(pending, **ANSWERS))).json

    clock.now += 59
    fresh = await client.send(client.retry(pending, sure=YES))

    assert refused(fresh, "was used already")


@pytest.mark.parametrize("size", [40_000])
async def test_state_that_is_too_large_is_an_error_with_the_size(size: int, caplog: Any) -> None:
    """The log has the size and the limit; the client gets a reference."""

    class Large(Waits):
        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            channel.assigns["text"] = "x" * size
            return await super().call(request, channel)

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return "never"

    client = AnsweringClient(muxed(Large(asks)))

    answer = await client.send(client.call("wait"))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert "a request_state of 40" in caplog.text
    assert "the maximum is 32768" in caplog.text
