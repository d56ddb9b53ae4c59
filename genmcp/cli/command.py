"""The commands, and what they take."""

import argparse
import asyncio
import logging
import os
import threading
from collections.abc import Collection, Sequence

from genmcp.cli.target import load, mux_of
from genmcp.cli.worker import GRACE, Hands, work
from genmcp.errors import ConfigurationError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what *arguments*, by default those of the process, say.

    Raises:
        SystemExit: with 2 if they cannot be done as they are; the reason is on standard error.
    """
    parser = argparse.ArgumentParser(prog="genmcp", description="MCP servers as ASGI applications.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    worker = commands.add_parser(
        "worker",
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
    options = parser.parse_args(arguments)
    try:
        _work(options)
    except ConfigurationError as error:
        worker.error(str(error))


def _work(options: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    mux = mux_of(options.target)
    app = None if options.lifespan is None else load(options.lifespan)
    if app is not None and not callable(app):
        raise ConfigurationError(f"--lifespan: {options.lifespan} is no application: {app!r}")
    hands = Hands(queues=options.queues, concurrency=options.concurrency, grace=options.grace)
    others = threading.enumerate()
    asyncio.run(work(mux, hands, app))
    _leave(others)


def _leave(others: Collection[threading.Thread]) -> None:
    """End this process now if a thread besides *others* goes on.

    It works on a job that cannot be cancelled, and that another process has by now.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread not in others:
            thread.join(0.2)  # one that has nothing to do is about to end
            if thread.is_alive():
                logging.shutdown()
                os._exit(0)


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
