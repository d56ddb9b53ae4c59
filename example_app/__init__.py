"""The parts store of a bicycle workshop: a web application, with an MCP endpoint for models.

    python -m example_app
    uvicorn example_app:app

The data is in one SQLite file, `EXAMPLE_DATABASE` (default: example.db in the working directory),
which is created and filled at the first start. Next to it are the store of long-running calls and
a file with the secret; `GENMCP_STORE` and `GENMCP_SECRET` replace them.
No other files are created.

All users are guests, unless `EXAMPLE_USER_HEADER` names the header in which a proxy sends the user
who is logged in, such as `X-Forwarded-User`. Set it only behind a proxy that sets this header:
otherwise any client can send it.

Start reading with `application`, which mounts the endpoint, and `tools`. `workshop` and `database`
contain the application itself, which does not depend on MCP.
"""

import os
from pathlib import Path
from typing import Any

from example_app.application import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """Create `app` and `mux` at their first use: importing the package creates no files."""
    if name not in ("app", "mux"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    database = Path(os.environ.get("EXAMPLE_DATABASE") or "example.db")
    app = create_app(database, user_header=os.environ.get("EXAMPLE_USER_HEADER") or None)
    globals().update(app=app, mux=app.state.mux)
    return globals()[name]
