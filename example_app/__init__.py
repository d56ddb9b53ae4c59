"""The parts store of a bicycle workshop: a web application, with an MCP endpoint for models.

    python -m example_app
    uvicorn example_app:app

It keeps everything in one SQLite file, `EXAMPLE_DATABASE` (default: example.db in the working
directory), which is made and filled at the first start.

Read `app` first: how an application mounts the endpoint. Then `tools`: what a model may call.
`workshop` and `database` are the application's own, and know nothing of MCP.
"""

import os
from pathlib import Path

from example_app.app import create_app

__all__ = ["app", "create_app"]

app = create_app(Path(os.environ.get("EXAMPLE_DATABASE") or "example.db"))
