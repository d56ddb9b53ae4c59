"""The parts store of a bicycle workshop: a web application, with an MCP endpoint for models.

    python -m example_app
    python -m example_app --login
    uvicorn example_app:app

The data is in one SQLite file, `EXAMPLE_DATABASE` (default: example.db in the working directory),
which is created and filled at the first start. Next to it are the store of long-running calls and
a file with the secret; `GENMCP_STORE` and `GENMCP_SECRET` replace them.
No other files are created.

All users are guests, unless `EXAMPLE_USER_HEADER` names the header in which a proxy sends the user
who is logged in, such as `X-Forwarded-User`. Set it only behind a proxy that sets this header:
otherwise any client can send it.

With `--login`, or `EXAMPLE_LOGIN=1`, the endpoint needs an access token. An authorization server
for trying it out is served beside it (`login`), and book_delivery needs a scope that clients ask
their users for when it is called. It works on a loopback address only, and needs `genmcp[auth]`.

Each concept of genmcp appears once. `workshop`, `database`, `pages` and `seed` are the application
itself, which does not depend on MCP.

| concept | module | explained by |
|---|---|---|
| tools as functions, dependencies | tools.repairs | steps 1 and 4 of the tutorial |
| tools as classes, typed results | tools.parts | steps 2 and 3 of the tutorial |
| a call that runs once: an idempotency key | tools.parts | the page on idempotency keys |
| progress, work in threads | tools.orders | step 5 of the tutorial |
| validation, a question, `continue_` | tools.delivery | the page on continuations |
| a job, a question, `.then` | tools.minimums | steps 6 and 7 of the tutorial |
| assigns | tools.assigned | the page on the channel |
| resources, completion, changes | resources | step 3 of the tutorial |
| a prompt | prompts | the page on prompts |
| a server with its components | suite | step 1 of the tutorial |
| mounting, store, secret, console, telemetry | application | step 4 of the tutorial |
| a client in the process, subscriptions | live | the page on subscriptions |
| an app: a page for the results of a tool | chart | the page on extensions |
| login, scopes, step-up | login | the page on authorization |
"""

import os
from pathlib import Path
from typing import Any

from example_app.application import create_app

__all__ = ["create_app", "database_path"]


def database_path() -> Path:
    """Return the path of the database file."""
    return Path(os.environ.get("EXAMPLE_DATABASE") or "example.db")


def __getattr__(name: str) -> Any:
    """Create `app` and `mux` at their first use: importing the package creates no files."""
    if name not in ("app", "mux"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = create_app(database_path(), user_header=os.environ.get("EXAMPLE_USER_HEADER") or None)
    globals().update(app=app, mux=app.state.mux)
    return globals()[name]
