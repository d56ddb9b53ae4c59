"""Functions under `@job`: how they are found, and which arguments they take."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from genmcp.core.waiting import Job
from genmcp.errors import ConfigurationError
from genmcp.tasks.jobs import JobFunction, Run, SavedState, find_job, job
from genmcp.tasks.progress import ProgressWriter


@job
async def transcribe(run: Run, url: Any, *, language: str = "en") -> str:
    """Records log messages."""
    return f"{url} in {language}"


@job(name="resize", queue="gpu", timeout=60, retries=3, backoff=2.5)
def resize(run: Run, width: int) -> int:
    return width // 2


def test_job_is_found_by_its_module_and_name() -> None:
    """By default that is its module and its name in it."""
    assert transcribe.name == f"{__name__}:transcribe"
    assert transcribe is find_job(transcribe.name)
    assert find_job("unknown:job") is None


def test_job_is_work_for_an_engine() -> None:
    """Its arguments are passed by name, with the options of the decorator."""
    assert Job(name=transcribe.name, arguments={"url": "u"}) == transcribe.job("u")
    assert resize.job(width=8) == Job(
        name="resize", arguments={"width": 8}, queue="gpu", timeout=60, retries=3, backoff=2.5
    )


async def test_function_of_a_job_may_be_called() -> None:
    """A test of the function needs no engine."""
    run = Run("t.0", 1, {}, ProgressWriter(discard), asyncio.get_running_loop(), SAVED)

    assert await transcribe(run, "u", language="no") == "u in no"
    assert resize(run, 8) == 4
    assert transcribe.__doc__ == "Records log messages."
    assert repr(resize) == "<job resize>"
    assert (transcribe.is_async, resize.is_async) == (True, False)


async def discard(state: object) -> None: ...


SAVED = SavedState(None, discard, 100)


async def test_run_refuses_to_wait_for_its_own_loop() -> None:
    """It would wait without end."""
    run = Run("t.0", 1, {}, ProgressWriter(discard), asyncio.get_running_loop(), SAVED)

    with pytest.raises(RuntimeError, match="use await"):
        run.in_loop(run.progress(1))


def test_run_does_not_wait_for_a_loop_that_has_ended() -> None:
    """A thread that outlives its worker gets an error."""
    loop = asyncio.new_event_loop()
    run = Run("t.0", 1, {}, ProgressWriter(discard), loop, SAVED)
    loop.close()

    with pytest.raises(RuntimeError):
        run.in_loop(run.progress(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "url"),
        ({"url": 1, "langauge": "no"}, "langauge"),
        ({"url": {"items": [1, 2, {"x": object()}]}}, r"url\.items\[2\]\.x"),
        ({"url": 2**70}, "url"),
        ({"url": "\ud800"}, "url"),
    ],
)
def test_job_refuses_arguments_it_cannot_have(arguments: dict[str, Any], message: str) -> None:
    """At once, where the mistake is, naming the parameter and the place in it."""
    with pytest.raises(TypeError, match=message):
        transcribe.job(**arguments)


def named(name: str) -> JobFunction[..., Any]:
    @job(name=name)
    async def first(run: Run) -> None: ...

    return first


def test_job_name_belongs_to_one_function() -> None:
    """A second function of that name is refused; the same once more is a reload."""
    named("taken")
    again = named("taken")

    assert again is find_job("taken")
    with pytest.raises(ConfigurationError, match="taken"):

        @job(name="taken")
        async def second(run: Run) -> None: ...


def method(self: Any) -> None: ...


def nothing() -> None: ...


def by_name_only(*, run: Run) -> None: ...


def many(run: Run, *urls: str) -> None: ...


async def yields(run: Run) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (method, {}, "method"),
        (nothing, {}, "first parameter"),
        (by_name_only, {}, "first parameter"),
        (many, {}, r"\*urls"),
        (yields, {}, "yields"),
        (named, {"timeout": 0}, "timeout"),
        (named, {"expires": 0}, "expires"),
        (named, {"delay": -1}, "delay"),
        (named, {"retry_on": "OSError"}, "retry_on"),
        (named, {"do_not_retry": (OSError, 1)}, "do_not_retry"),
        (named, {"retries": -1}, "retries"),
        (named, {"backoff": -1}, "backoff"),
        (named, {"retries": "many"}, "retries"),
        (named, {"colour": "red"}, "colour"),
        (print, {}, "functions"),
    ],
)
def test_invalid_job_is_rejected_at_import(
    function: Callable[..., Any], options: Any, message: str
) -> None:
    """Wrong configuration fails when the module is imported."""
    with pytest.raises(ConfigurationError, match=message):
        job(**options)(function)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"at": 5}, "time zone"),
        ({"delay": -1}, "delay"),
    ],
)
def test_wrong_options_of_a_job_are_rejected(options: Any, message: str) -> None:
    """Where they are given, and not in a worker."""
    with pytest.raises(ConfigurationError, match=message):
        transcribe.options(**options)


def test_start_time_becomes_a_delay() -> None:
    """A time that has passed is now. The function itself keeps its options."""
    later = datetime.now(UTC) + timedelta(hours=1)

    assert 3590 < transcribe.options(at=later).job("u").delay <= 3600
    assert transcribe.options(at=datetime(2000, 1, 1, tzinfo=UTC)).job("u").delay == 0
    assert transcribe.options(queue="slow", expires=5.0).job("u").queue == "slow"
    assert transcribe.job("u").queue == "default"


def test_function_of_a_script_needs_a_name() -> None:
    """Its module is called `__main__` where it runs, and something else where a worker is."""

    async def scripted(run: Run) -> None: ...

    scripted.__module__ = "__main__"
    with pytest.raises(ConfigurationError, match=r"script.*name=") as raised:
        job(scripted)

    assert "__main__:" in str(raised.value)
    assert job(name="tests.scripted")(scripted).job().name == "tests.scripted"
