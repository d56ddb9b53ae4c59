"""A workflow of Temporal that knows nothing of genmcp."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from tests.tasks.engine_log import record


@workflow.defn(name="plain", sandboxed=False)
class PlainWorkflow:
    @workflow.run
    async def run(self, folder: str, how: str = "") -> str:
        """Return a text, fail, or never end."""
        record(folder, "plain started")
        await workflow.wait_condition(lambda: how != "holds")
        if how == "fails":
            raise ApplicationError("a secret of the work")
        return "plain"
