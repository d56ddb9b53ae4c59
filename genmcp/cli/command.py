"""The commands, and what they take."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from genmcp.cli import remote
from genmcp.cli.conformance import conformance
from genmcp.cli.serve import Http, over_http, over_streams
from genmcp.cli.target import load, mux_of
from genmcp.cli.worker import GRACE, Hands, work
from genmcp.errors import ConfigurationError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what *arguments*, by default those of the process, say.

    Raises:
        SystemExit: with 2 if they cannot be done as they are, with 1 if what they do has failed;
            the reason is on standard error.
    """
    parser = argparse.ArgumentParser(prog="genmcp", description="MCP servers as ASGI applications.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    _add_serve(commands)
    _add_worker(commands)
    _add_remote(commands)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    others = threading.enumerate()
    try:
        status = options.do(options)
    except ConfigurationError as error:
        options.parser.error(str(error))
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except BrokenPipeError:  # nobody reads on, as with `| head`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is still to be written
        os.close(nowhere)
        status = _UNHEARD
    _leave(others, status or 0)
    if status:
        sys.exit(status)


_INTERRUPTED: Final = 128 + signal.SIGINT
_UNHEARD: Final = 128 + 13  # SIGPIPE, which Windows has no name for
"""What a shell says of a command that was interrupted, and of one nobody listened to."""


Commands = argparse._SubParsersAction  # argparse has no public name for it


def _command(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    do: Callable[[argparse.Namespace], int | None],
    *,
    help: str,
    description: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(do=do, parser=parser)
    return parser


def _add_serve(commands: "Commands[argparse.ArgumentParser]") -> None:
    serve = _command(
        commands,
        "serve",
        _serve,
        help="serve over HTTP, or over standard streams",
        description="Serves a server, until SIGTERM or SIGINT.",
    )
    serve.add_argument("target", help="module:attribute of a Mux, Endpoint, or Server")
    serve.add_argument(
        "--stdio",
        action="store_true",
        help="serve the one client that has started this process, until its input ends",
    )
    there = Http(target="")
    serve.add_argument("--host", default=there.host, help=f"the address ({there.host})")
    serve.add_argument(
        "--port", type=_number, default=there.port, metavar="N", help=f"the port ({there.port})"
    )
    serve.add_argument("--path", default=there.path, help=f"the path of the URL ({there.path})")
    serve.add_argument(
        "--workers", type=_number, default=1, metavar="N", help="how many processes serve (1)"
    )


def _add_worker(commands: "Commands[argparse.ArgumentParser]") -> None:
    worker = _command(
        commands,
        "worker",
        _work,
        help="work on jobs, without serving",
        description="Works on the jobs of a server, until SIGTERM or SIGINT.",
    )
    worker.add_argument("target", help="module:attribute of a Mux, Endpoint, or Server")
    worker.add_argument(
        "--lifespan",
        metavar="APP",
        help="module:attribute of an ASGI application that is started first, and stopped last",
    )
    worker.add_argument(
        "--queue",
        action="append",
        dest="queues",
        metavar="NAME",
        help="a queue whose jobs are taken, instead of those in JobOptions; may be repeated",
    )
    worker.add_argument("--concurrency", type=_number, metavar="N", help="how many jobs at once")
    worker.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"how long what runs may go on when the worker is to stop ({GRACE:g})",
    )


_TARGET: Final = "a URL, the command of a server over stdio (in quotes), or module:attribute"


def _add_remote(commands: "Commands[argparse.ArgumentParser]") -> None:
    def add(name: str, do: Callable[[argparse.Namespace], int], help: str) -> Any:
        parser = _command(commands, name, do, help=help, description=f"{help.capitalize()}.")
        parser.add_argument("target", help=_TARGET)
        return parser

    def of(what: Callable[..., int], *names: str) -> Callable[[argparse.Namespace], int]:
        return lambda options: what(
            *(getattr(options, name) for name in ("target", *names)), as_json=options.json
        )

    given = {"nargs": "*", "metavar": "key=value"}
    parsers = [
        add("tools", of(remote.tools), "show the tools of a server"),
        calls := add("call", of(remote.call, "name", "given"), "call a tool of a server"),
        reads := add("read", of(remote.read, "uri"), "show a resource of a server"),
        prompts := add("prompt", of(remote.prompt, "name", "given"), "show a prompt of a server"),
        add("discover", of(remote.discover), "show what a server is"),
    ]
    calls.add_argument("name", help="the tool")
    calls.add_argument(
        "given", help="arguments, read as the tool's schema says; key:=value is JSON", **given
    )
    reads.add_argument("uri", help="the resource")
    prompts.add_argument("name", help="the prompt")
    prompts.add_argument("given", help="arguments", **given)
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help="show the whole result, as JSON")
    suite = add(
        "conformance",
        lambda options: conformance(
            options.target, revision=options.spec_version, scenario=options.scenario
        ),
        "run the official conformance suite against a server",
    )
    suite.add_argument("--spec-version", metavar="REVISION", help="the revision to test")
    suite.add_argument("--scenario", metavar="NAME", help="the one scenario to run")


def _serve(options: argparse.Namespace) -> None:
    if options.stdio:
        over_streams(options.target)
        return
    over_http(
        Http(
            target=options.target,
            host=options.host,
            port=options.port,
            path=options.path,
            workers=options.workers,
        )
    )


def _work(options: argparse.Namespace) -> None:
    mux = mux_of(options.target)
    app = None if options.lifespan is None else load(options.lifespan)
    if app is not None and not callable(app):
        raise ConfigurationError(f"--lifespan: {options.lifespan} is no application: {app!r}")
    hands = Hands(queues=options.queues, concurrency=options.concurrency, grace=options.grace)
    asyncio.run(work(mux, hands, app))


def _leave(others: Collection[threading.Thread], status: int) -> None:
    """End this process now, with *status*, if a thread besides *others* goes on.

    It works on a job that cannot be cancelled, and that another process has by now.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread not in others:
            thread.join(0.2)  # one that has nothing to do is about to end
            if thread.is_alive():
                logging.shutdown()
                os._exit(status)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
