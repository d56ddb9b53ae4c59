"""`python -m example_app`: serve, and print how a client connects."""

import argparse
import json
import logging
import os
from contextlib import ExitStack, suppress

import uvicorn
from starlette.applications import Starlette

import example_app

GREETING = """
The workshop's parts store: {url}/
Its MCP endpoint:           {url}/mcp  (a browser gets a page to try it)

Connect Claude Code:

    claude mcp add --transport http workshop {url}/mcp

or any client that is configured by JSON:

    {configuration}
"""

LOGIN = """
It needs a login, for which any name will do; book_delivery needs a further scope:

    genmcp login {url}/mcp
    genmcp call {url}/mcp list_repairs --login
    genmcp call {url}/mcp book_delivery --login \\
        supplier=Albatros csv=$'number,quantity\\nCH-103,2'
"""


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m example_app", description=__doc__)
    # A default that is text is parsed like an argument: an invalid PORT is reported by name.
    parser.add_argument("--host", default=os.environ.get("HOST") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=os.environ.get("PORT") or "8000")
    parser.add_argument(
        "--login",
        action="store_true",
        default=os.environ.get("EXAMPLE_LOGIN", "") not in ("", "0"),
        help="require a login, at an authorization server that is served as well",
    )
    options = parser.parse_args()
    if options.login and options.host != "127.0.0.1":
        # Anyone can log in at that authorization server.
        parser.error("--login is for 127.0.0.1 only")

    # The application is made once the port is known, which is part of what tokens are for.
    # Without a proxy, any client could send X-Forwarded-For.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = uvicorn.Config(
        Starlette(),
        host=options.host,
        port=options.port,
        proxy_headers=False,
        log_config=None,  # one format for all records
        access_log=False,  # the mux logs each request, with the name of its tool
    )
    # Printed once the port is bound (0 takes a free one): connections are accepted, or wait until
    # the application has started.
    with config.bind_socket() as listener, ExitStack() as stack:
        listener.listen()
        url = url_of(options.host, listener.getsockname()[1])
        config.app = application(url, login=options.login, stack=stack)
        print(greeting(url, login=options.login), flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises it after a graceful shutdown
            uvicorn.Server(config).run(sockets=[listener])


def application(url: str, *, login: bool, stack: ExitStack) -> Starlette:
    """Return the application; with *login*, its authorization server runs until *stack* ends."""
    if not login:
        app: Starlette = example_app.app
        return app
    from example_app.login import ScopedBookDelivery, login_at  # needs an extra
    from example_app.suite import create_suite

    auth = stack.enter_context(login_at(url))
    return example_app.create_app(
        example_app.database_path(), auth=auth, suite=create_suite(ScopedBookDelivery)
    )


def url_of(host: str, port: int) -> str:
    """Return the URL for clients on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def greeting(url: str, *, login: bool = False) -> str:
    """Return the URLs, and the commands with which clients connect."""
    server = {"workshop": {"type": "http", "url": f"{url}/mcp"}}
    text = GREETING.format(url=url, configuration=json.dumps({"mcpServers": server}))
    return LOGIN.format(url=url) + text if login else text


if __name__ == "__main__":
    main()
