"""Verdicts on tokens: how long they are kept, and for whom."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from genmcp.auth import AuthorizationUnavailable, InvalidToken
from genmcp.auth.verdicts import Clock, Verdicts
from genmcp.core.access import Access
from tests.support.asgi import until
from tests.support.clock import Clock as ManualClock


class Judge:
    """A verifier that counts. *answer* is called for each token, in the middle of a wait."""

    def __init__(self, answer: Callable[[str], Access] | None = None) -> None:
        self.answer = answer or (lambda token: Access(subject=token))
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    async def __call__(self, token: str) -> Access:
        self.asked.append(token)
        try:
            await until(self.gate.is_set)
            return self.answer(token)
        finally:
            self.ended.append(token)


class Fixture:
    """Verdicts with clocks that stand still."""

    def __init__(self, judge: Judge, *, seconds: float = 60, unix: float = 1000) -> None:
        self.judge = judge
        self.unix = ManualClock(unix)
        self.monotonic = ManualClock()
        clock = Clock(self.unix, self.monotonic)
        self.verdicts = Verdicts(judge, seconds=seconds, clock=clock)

    async def subject(self, token: str) -> str | None:
        """Return the subject of *token*, as the endpoint finds it."""
        return (self.verdicts.find(token.encode()) or await self.verdicts.verify(token)).subject


async def test_verdict_is_kept_for_its_time() -> None:
    """Without a wait; then the token is verified again."""
    fixture = Fixture(Judge(), seconds=60)
    assert fixture.verdicts.find(b"ada") is None
    for moment in (0, 30, 59.9):
        fixture.monotonic.now = moment
        assert await fixture.subject("ada") == "ada"
    assert fixture.judge.asked == ["ada"]
    fixture.monotonic.now = 60

    assert fixture.verdicts.find(b"ada") is None
    assert await fixture.subject("ada") == "ada"
    assert fixture.judge.asked == ["ada", "ada"]


async def test_verdict_ends_with_the_token() -> None:
    """By the Unix time in `exp`."""
    fixture = Fixture(Judge(lambda token: Access(subject=token, expires=1010)))
    await fixture.subject("ada")
    fixture.unix.now = 1009.9
    assert fixture.verdicts.find(b"ada")
    fixture.unix.now = 1010

    assert fixture.verdicts.find(b"ada") is None


@pytest.mark.parametrize("jump", [-(10**6), 10**6])
async def test_clock_that_jumps_prolongs_nothing(jump: float) -> None:
    """The age of a verdict is measured by a clock that cannot be set."""
    fixture = Fixture(Judge(lambda token: Access(subject=token, expires=1010)), unix=1000)
    await fixture.subject("ada")
    fixture.unix.now += jump
    fixture.monotonic.now += 60

    assert fixture.verdicts.find(b"ada") is None


async def test_refusal_is_kept_shortly() -> None:
    """A client that repeats a bad token costs one verification in 10 s, with the same answer."""

    def refuse(token: str) -> Access:
        raise InvalidToken("wrong aud", "found: 'a'; expected: b")

    fixture = Fixture(Judge(refuse))
    for moment in (0, 5, 9.9, 10):
        fixture.monotonic.now = moment
        with pytest.raises(InvalidToken) as caught:
            await fixture.subject("bad")
        assert (caught.value.reason, caught.value.detail) == (
            "wrong aud",
            "found: 'a'; expected: b",
        )

    assert len(fixture.judge.asked) == 2


async def test_refusal_is_not_kept_longer_than_a_verdict() -> None:
    """A verifier that keeps nothing for long has its reason."""

    def refuse(token: str) -> Access:
        raise InvalidToken("not active")

    fixture = Fixture(Judge(refuse), seconds=2)
    for moment in (0, 1.9, 2):
        fixture.monotonic.now = moment
        with pytest.raises(InvalidToken):
            await fixture.subject("bad")

    assert len(fixture.judge.asked) == 2


async def test_unavailable_verifier_gets_another_request() -> None:
    """The next request may succeed."""

    def fail(token: str) -> Access:
        raise AuthorizationUnavailable("down")

    fixture = Fixture(Judge(fail))
    for _ in range(2):
        with pytest.raises(AuthorizationUnavailable):
            await fixture.subject("ada")
    fixture.judge.answer = lambda token: Access(subject=token)

    assert await fixture.subject("ada") == "ada"
    assert len(fixture.judge.asked) == 3


async def test_nothing_is_kept_with_zero_seconds() -> None:
    """Each request is verified, and refused, anew."""
    fixture = Fixture(Judge(), seconds=0)
    for _ in range(3):
        await fixture.subject("ada")

    assert len(fixture.judge.asked) == 3


async def test_time_counts_from_before_the_wait() -> None:
    """A token that is revoked while its introspection is under way is not accepted for longer."""
    fixture = Fixture(Judge(), seconds=30)
    fixture.judge.gate.clear()
    task = asyncio.create_task(fixture.subject("ada"))
    await until(lambda: fixture.judge.asked)
    fixture.monotonic.now = 20
    fixture.judge.gate.set()
    await task
    assert fixture.verdicts.find(b"ada")
    fixture.monotonic.now = 30

    assert fixture.verdicts.find(b"ada") is None


async def test_number_of_verdicts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are verified again."""
    monkeypatch.setattr("genmcp.auth.verdicts.MAX_ENTRIES", 3)
    fixture = Fixture(Judge())
    for token in "abcd":
        await fixture.subject(token)

    assert [bool(fixture.verdicts.find(each.encode())) for each in "abcd"] == [False, *[True] * 3]


async def test_flood_of_bad_tokens_removes_no_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone can send any number of them."""
    monkeypatch.setattr("genmcp.auth.verdicts.MAX_ENTRIES", 3)

    def answer(token: str) -> Access:
        if token.startswith("bad"):
            raise InvalidToken("unknown")
        return Access(subject=token)

    fixture = Fixture(Judge(answer))
    await fixture.subject("good")
    for number in range(100):
        with pytest.raises(InvalidToken):
            await fixture.subject(f"bad{number}")
    await fixture.subject("good")

    assert fixture.judge.asked.count("good") == 1
    fixture.judge.asked.clear()
    for number in (99, 98, 97, 0):
        with pytest.raises(InvalidToken):
            await fixture.subject(f"bad{number}")
    assert fixture.judge.asked == ["bad0"]


async def test_token_itself_is_kept_nowhere() -> None:
    """Neither an accepted nor a refused one: only digests, and the outcome of the verifier."""

    def answer(token: str) -> Access:
        if token.startswith("refused"):
            raise InvalidToken("unknown")
        return Access(subject="ada")

    fixture = Fixture(Judge(answer))
    await fixture.subject("accepted-token")
    with pytest.raises(InvalidToken):
        await fixture.subject("refused-token")

    state = repr(vars(fixture.verdicts))
    assert "ada" in state
    assert "-token" not in state


async def test_same_token_is_verified_once_at_a_time() -> None:
    """Different tokens are verified side by side."""
    fixture = Fixture(Judge())
    fixture.judge.gate.clear()
    tasks = [asyncio.create_task(fixture.subject(token)) for token in "ababab"]
    await until(lambda: len(fixture.judge.asked) == 2)
    fixture.judge.gate.set()

    assert await asyncio.gather(*tasks) == list("ababab")
    assert fixture.judge.asked == ["a", "b"]


async def test_error_reaches_all_that_wait() -> None:
    """One verification failed for each of them."""

    def fail(token: str) -> Access:
        raise AuthorizationUnavailable("down")

    fixture = Fixture(Judge(fail))
    fixture.judge.gate.clear()
    tasks = [asyncio.create_task(fixture.subject("a")) for _ in range(3)]
    await until(lambda: fixture.judge.asked)
    fixture.judge.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(each) for each in found] == [AuthorizationUnavailable] * 3
    assert fixture.judge.asked == ["a"]


async def test_cancelled_request_does_not_cancel_the_others() -> None:
    """The verification belongs to all that wait for it."""
    fixture = Fixture(Judge())
    fixture.judge.gate.clear()
    first, second, third = (asyncio.create_task(fixture.subject("a")) for _ in range(3))
    await until(lambda: fixture.judge.asked)
    for task in (first, third):
        task.cancel()
    await asyncio.wait([first, third])
    fixture.judge.gate.set()

    assert await second == "a"
    assert first.cancelled()
    assert fixture.judge.asked == ["a"]


async def test_verification_ends_with_its_last_request() -> None:
    """All clients have left. A new one begins again, also before the old one has ended."""
    fixture = Fixture(Judge())
    fixture.judge.gate.clear()
    first = asyncio.create_task(fixture.subject("a"))
    await until(lambda: fixture.judge.asked)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(fixture.subject("a"))
    await until(lambda: len(fixture.judge.asked) == 2)
    assert fixture.judge.ended == ["a"]
    fixture.judge.gate.set()

    assert await second == "a"


async def test_next_event_loop_uses_the_verdicts() -> None:
    """One after the other, as in tests: a wait of a loop that has ended holds up nothing."""
    fixture = Fixture(Judge())
    fixture.judge.gate.clear()

    async def leave() -> None:
        waiting = asyncio.create_task(fixture.subject("a"))
        await until(lambda: fixture.judge.asked)
        waiting.cancel()

    await asyncio.to_thread(asyncio.run, leave())
    fixture.judge.gate.set()
    found = await asyncio.to_thread(asyncio.run, fixture.subject("a"))

    assert found == await fixture.subject("a") == "a"
    assert len(fixture.judge.asked) == 2
