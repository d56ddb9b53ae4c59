"""A server over a SQLite file that gives up a lock soon, so that its tests need not wait long."""

import os
from typing import Any

from starlette.applications import Starlette

from genmcp import Continue, Endpoint, Health, Mux, Run, Suite, Tool, job
from genmcp.stores.sqlite.store import SQLiteStore


@job
async def work(run: Run) -> None: ...


class Works(Tool):
    """Waits for a job."""

    name = "works"

    async def call(self, request: Any, channel: Any) -> Continue:
        return work.job().then(self.worked)

    async def worked(self, request: Any, outcome: None, channel: Any) -> str:
        return "done"


suite = Suite(name="patient", version="1", tools=[Works])
store = SQLiteStore(os.environ["STUDIO"], timeout=0.1)
mux = Mux(suite, store=store, secret="a secret of at least 16 bytes")
endpoint = Endpoint(mux)
app = Starlette(routes=[endpoint.route("/mcp"), *Health(endpoint).routes()])
