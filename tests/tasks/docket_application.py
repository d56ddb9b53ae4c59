"""An application with a Docket worker of its own, which runs the jobs of a mux, too.

`docket worker --docket shop --tasks tests.tasks.docket_application:tasks` serves it. The variable
SHOP_REDIS names the server.
"""

import asyncio
import os
import sys
from typing import Any

from genmcp import Continue, JobOptions, Mux, Run, Suite, job, tool
from genmcp.tasks.docket import DocketEngine


async def send_mail(recipient: str) -> None:
    """A task of the application."""
    note(f"mail to {recipient}")


@job(queue="heavy")
async def render(run: Run, page: str) -> str:
    """A job of the mux. The page "slow" never ends, except with the variable SHOP_FAST."""
    note(f"rendering {page}, attempt {run.attempt}")
    if page == "slow" and "SHOP_FAST" not in os.environ:
        await asyncio.Event().wait()
    return f"{page} by {os.getpid()}"


@tool
async def print_page(page: str) -> Continue:
    """Prints a page."""
    return render.job(page).then(printed)


@print_page.step
async def printed(rendered: str) -> str:
    """Return what the job has returned."""
    return rendered


def note(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def make_engine() -> DocketEngine:
    return DocketEngine(os.environ["SHOP_REDIS"], dockets={"heavy": "shop"})


def make_mux(engine: DocketEngine, *queues: str) -> Mux:
    suite = Suite(name="shop", version="1", tools=[print_page])
    jobs = JobOptions(queues=queues, lease=60, shutdown_grace=0.2)
    return Mux(suite, store=os.environ["SHOP_REDIS"], engine=engine, jobs=jobs, secret="s" * 32)


def __getattr__(name: str) -> Any:
    """Create `tasks` in the worker alone: the test imports this module, too."""
    if name != "tasks":
        raise AttributeError(name)
    engine = make_engine()
    return [send_mail, *engine.tasks_for(make_mux(engine, "heavy"))]
