"""Waits for several jobs: `gather`."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from genmcp.core.outcome import Done, Failed
from genmcp.core.waiting import JobGroup, Wait

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

JobsOrMapping: TypeAlias = Wait[Any] | Mapping[str, Wait[Any]]


@overload
def gather(jobs: Mapping[str, Wait[Any]], /, *, return_outcomes: bool = False) -> Wait[Any]: ...
@overload
def gather(
    job1: Wait[A], job2: Wait[B], /, *, return_outcomes: Literal[False] = False
) -> Wait[tuple[A, B]]: ...
@overload
def gather(*jobs: Wait[T], return_outcomes: Literal[False] = False) -> Wait[list[T]]: ...
@overload
def gather(*jobs: Wait[T], return_outcomes: Literal[True]) -> Wait[list[Done[T] | Failed]]: ...
def gather(*jobs: JobsOrMapping, return_outcomes: bool = False) -> Wait[Any]:
    """Return a wait for several jobs, which run at the same time.

        return gather(thumbnail.job(url), transcribe.job(url)).then(self.done)
        return gather({"thumb": thumbnail.job(url), "text": transcribe.job(url)}).then(self.done)

    The value is a list of their values in the order of the jobs, or a dict under the same keys.

    Args:
        *jobs: jobs or external jobs, or one dict of them. At most 100.
        return_outcomes: False (the default): the first job that fails makes the wait fail with its
            error, and the other jobs are cancelled. True: the value contains `Done(value)` or
            `Failed(error)` for each job, and the wait does not fail.

    Raises:
        ContractError: (a TypeError) there is no job, there are too many, or one of *jobs* is
            something else.
    """
    return JobGroup(jobs, "outcomes" if return_outcomes else "all")
