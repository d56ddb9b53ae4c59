"""The clients of engines in the process of a server: threads, event loops, applications."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest
from celery import Celery  # type: ignore[import-untyped]
from celery.signals import before_task_publish  # type: ignore[import-untyped]
from procrastinate import App
from procrastinate.testing import InMemoryConnector

from genmcp import ConfigurationError
from genmcp.tasks.celery import CeleryQueue
from genmcp.tasks.procrastinate import ProcrastinateQueue
from genmcp.tasks.queues import EngineQueue
from tests.tasks.bench import BOUND


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The URL of a broker that accepts connections, and never responds."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


async def never(id: str) -> str:
    raise AssertionError("no worker runs here")


async def test_silent_broker_blocks_nothing_else(silent_broker: str) -> None:
    """The store looks up the name of its host in the threads of the event loop."""
    queue = CeleryQueue(Celery("silent", broker=silent_broker))
    queue.bind("genmcp.silent.heavy", never)
    submissions = [asyncio.create_task(queue.submit(f"t{n}:1", "job")) for n in range(50)]
    await asyncio.sleep(0)  # all have begun

    async with asyncio.timeout(BOUND):
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    for each in submissions:
        each.cancel()
    await asyncio.wait(submissions)


async def test_submission_has_the_context_of_its_caller() -> None:
    """The instrumentation of Celery finds the span there that a job belongs to."""
    seen, app = list[str](), Celery("traced", broker="memory://")
    span = ContextVar("span", default="none")
    queue = CeleryQueue(app)
    queue.bind("genmcp.traced.heavy", never)

    def publishing(**_: object) -> None:
        seen.append(span.get())

    before_task_publish.connect(publishing, weak=False)
    span.set("the span")
    try:
        await queue.submit("t1:1", "job")
    finally:
        before_task_publish.disconnect(publishing)
    assert seen == ["the span"]


@pytest.mark.parametrize(
    ("application", "queue"),
    [
        (lambda: Celery("twice"), CeleryQueue),
        (lambda: App(connector=InMemoryConnector()), ProcrastinateQueue),
    ],
    ids=["celery", "procrastinate"],
)
def test_second_queue_of_an_application_is_rejected(
    application: Callable[[], object], queue: Callable[[object], EngineQueue]
) -> None:
    """The engine would run its jobs by the function of the first one, on the store of that."""
    made = application()
    first = queue(made)
    first.bind("genmcp.studio.heavy", never)

    first.bind("genmcp.studio.heavy", never)  # another mux with the same queue
    queue(application()).bind("genmcp.studio.heavy", never)
    with pytest.raises(ConfigurationError, match="make one beside the application"):
        queue(made).bind("genmcp.studio.heavy", never)


class Connector(InMemoryConnector):
    """Takes a moment to connect, so that others wait for it."""

    async def open_async(self, pool: object = None) -> None:
        await asyncio.sleep(0)


def test_queue_serves_one_event_loop_after_another() -> None:
    """As in tests, each of which has an event loop."""
    queue = ProcrastinateQueue(App(connector=Connector()))
    queue.bind("genmcp.loops.heavy", never)

    async def submit() -> None:
        await asyncio.gather(*(queue.submit(f"t{number}:1", "job") for number in range(3)))
        await queue.aclose()

    asyncio.run(submit())
    asyncio.run(submit())
