"""A long-running tool: a job, then a question to the user, then a change if the user agrees.

Between these steps, the call is only in the store. The process may be killed at any point: another
one resumes the call. Explained by steps 6 and 7 of the tutorial.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from example_app.tools.assigned import user_of, workshop_of
from example_app.workshop import Category, Workshop, enough
from genmcp import (
    Cancelled,
    Channel,
    Continue,
    Declined,
    Run,
    Tool,
    ToolAnnotations,
    ToolRequest,
    elicit,
    job,
)

__all__ = ["Approval", "ReviewMinimums"]


class ReviewArguments(Struct, forbid_unknown_fields=True):
    weeks: Annotated[int, Meta(ge=1, le=26, description="How long a delivery takes")] = 2
    certainty: Annotated[
        float, Meta(gt=0, lt=1, description="How likely each part should last until then")
    ] = 0.95
    category: Annotated[Category | None, Meta(description="Only parts of this category")] = None
    simulations: Annotated[
        int, Meta(ge=100, le=1_000_000, description="How many futures to try for each part")
    ] = 2000


# At the top level of a module: the process that receives the answer imports it by name.
class Approval(Struct):
    """The minimums to change."""

    change: Annotated[
        Literal["all", "those that rise", "those that fall"], Meta(title="Which to change")
    ] = "all"


class Change(Struct):
    number: str
    was: int
    minimum: int


class Review(Struct):
    """The minimums that were changed, and the user who approved it."""

    changes: list[Change]
    user: str


@job(timeout=3600)
def simulate(
    run: Run, category: Category | None, weeks: int, certainty: float, simulations: int
) -> dict[str, int]:
    """Return the minimum of each part, by part number.

    A `def`, since it computes: it runs in a thread. It only reads, so it can be repeated.
    """
    workshop: Workshop = run.assigns["workshop"]
    parts = workshop.parts("", category)
    # Saved by an earlier attempt, whose process was stopped.
    minimums: dict[str, int] = run.saved or {}
    for done, part in enumerate(parts):
        # Raises if the job was cancelled.
        run.in_loop(run.progress(done, len(parts), part.name))
        if part.number not in minimums:
            minimums[part.number] = enough(
                part.number,
                workshop.demand(part.number),
                weeks=weeks,
                certainty=certainty,
                simulations=simulations,
            )
            run.in_loop(run.save(minimums))
    run.in_loop(run.progress(len(parts), len(parts), "Done"))
    return minimums


class ReviewMinimums(Tool[ReviewArguments]):
    """Reviews the minimum stock of each part, and asks the user which minimums to change.

    Takes a few seconds by default, and many minutes with a million simulations.
    """

    name = "review_minimums"
    title = "Review the minimums"
    # An idempotent call is repeated if its worker dies (`on_worker_lost`).
    annotations = ToolAnnotations(
        destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    output_schema = Review

    async def call(self, request: ToolRequest[ReviewArguments], channel: Channel) -> Continue:
        wanted = request.arguments
        work = simulate.job(wanted.category, wanted.weeks, wanted.certainty, wanted.simulations)
        return work.then(self.simulated)

    def simulated(
        self, request: ToolRequest[ReviewArguments], minimums: dict[str, int], channel: Channel
    ) -> Review | Continue:
        changes = workshop_of(channel).other_minimums(minimums)
        if not changes:
            return Review([], user_of(channel))
        channel.assigns["changes"] = changes  # stored for the next step
        asked = elicit(question(changes, len(minimums)), Approval)
        return asked.then(self.approved, self.declined)

    def approved(
        self, request: ToolRequest[ReviewArguments], approval: Approval, channel: Channel
    ) -> Review:
        chosen = [
            Change(number, was, minimum)
            for number, (was, minimum) in channel.assigns["changes"].items()
            if approval.change == "all" or (approval.change == "those that rise") == (minimum > was)
        ]
        # If this process dies before the result is stored, the step is repeated.
        workshop_of(channel).set_minimums({each.number: each.minimum for each in chosen})
        return Review(chosen, user_of(channel))

    def declined(
        self, request: ToolRequest[ReviewArguments], answer: Declined | Cancelled, channel: Channel
    ) -> Review:
        return Review([], user_of(channel))


def question(changes: dict[str, Any], parts: int) -> str:
    """Return the text of the question."""
    rising = sum(minimum > was for was, minimum in changes.values())
    return (
        f"{len(changes)} of {parts} parts should have another minimum: {rising} a higher one, "
        f"{len(changes) - rising} a lower one. Change them?"
    )
