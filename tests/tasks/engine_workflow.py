"""A workflow of Temporal that knows nothing of genmcp."""

from temporalio import workflow

from tests.tasks.engine_log import record


@workflow.defn(name="plain", sandboxed=False)
class PlainWorkflow:
    @workflow.run
    async def run(self, folder: str, holds: bool = False) -> str:
        """Return a text, or never."""
        record(folder, "plain started")
        await workflow.wait_condition(lambda: not holds)
        return "plain"
