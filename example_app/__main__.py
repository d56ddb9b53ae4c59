"""`python -m example_app`: serve, and print how a client connects."""

import argparse
import json
import os
from contextlib import suppress

import uvicorn

from example_app import app

GREETING = """
The workshop's parts store: {url}/
Its MCP endpoint:           {url}/mcp

Connect Claude Code:

    claude mcp add --transport http workshop {url}/mcp

or any client that is configured by JSON:

    {configuration}
"""


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m example_app", description=__doc__)
    # A default that is text is parsed like an argument: an invalid PORT is reported by name.
    parser.add_argument("--host", default=os.environ.get("HOST") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=os.environ.get("PORT") or "8000")
    options = parser.parse_args()

    # Without a proxy, any client could send X-Forwarded-For.
    config = uvicorn.Config(app, host=options.host, port=options.port, proxy_headers=False)
    # Printed once the port is bound (0 takes a free one): connections are accepted, or wait until
    # the application has started.
    with config.bind_socket() as listener:
        listener.listen()
        print(greeting(options.host, listener.getsockname()[1]), flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises it after a graceful shutdown
            uvicorn.Server(config).run(sockets=[listener])


def greeting(host: str, port: int) -> str:
    """Return the URLs, and the commands with which clients connect."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
    server = {"workshop": {"type": "http", "url": f"{url}/mcp"}}
    return GREETING.format(url=url, configuration=json.dumps({"mcpServers": server}))


if __name__ == "__main__":
    main()
