"""The sixth chapter: jobs, which are kept in a store. Any process with the store can run them."""

from genmcp import Client, Continue, Run, Suite, job, tool


@job
async def add_up(run: Run, numbers: list[int]) -> int:
    total = 0
    for done, number in enumerate(numbers, start=1):
        total += number
        await run.progress(done, len(numbers))
    return total


@tool
async def total(numbers: list[int]) -> Continue:
    """Adds up numbers in the background."""
    return add_up.job(numbers).then(added_up)


@total.step
async def added_up(value: int) -> str:
    return f"In total {value}."


@job(retries=1, backoff=0.01)
async def unreliable(run: Run) -> int:
    """Saves its progress, fails, and continues from there at the next attempt."""
    if run.saved is None:
        await run.save(41)
        raise ConnectionError("the database is away")
    return int(run.saved) + 1


@tool
async def stubborn() -> Continue:
    """Runs a job that fails at first."""
    return unreliable.job().then(finished)


@stubborn.step
async def finished(value: int) -> str:
    return f"Finished with {value}."


suite = Suite(name="tutorial", version="1.0", tools=[total, stubborn])


async def test_job_runs_in_a_worker() -> None:
    """By default, the worker is this process and the store is in memory."""
    async with Client(suite) as client:
        result = await client.call("total", {"numbers": [1, 2, 3]})

    assert result.text == "In total 6."


async def test_job_reports_progress_to_the_client() -> None:
    """The progress callback of the call gets the reports of the job, wherever it runs."""
    seen = []
    async with Client(suite) as client:
        await client.call(
            "total",
            {"numbers": [1, 2, 3]},
            progress=lambda progress, total, message: seen.append((progress, total)),
        )

    assert seen[-1] == (3, 3)


async def test_retry_continues_from_saved_state() -> None:
    """`run.save` keeps a JSON value for the next attempt, here or in another process."""
    async with Client(suite) as client:
        result = await client.call("stubborn")

    assert result.text == "Finished with 42."
