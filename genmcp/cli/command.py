"""The command: what was typed is done, and how it went is its exit status."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from typing import Final

from genmcp.cli.bare import plain
from genmcp.cli.logs import log_to_stderr
from genmcp.cli.output import CannotWrite
from genmcp.cli.parser import parser_of
from genmcp.cli.remote import quoted
from genmcp.cli.serve import Http, over_http, over_streams
from genmcp.cli.target import Broken, load, mux_of
from genmcp.cli.worker import Hands, work
from genmcp.errors import ConfigurationError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what *arguments*, by default those of the process, say.

    Raises:
        SystemExit: with 2 if they cannot be done as they are, with 1 if what they do has failed;
            the reason is on standard error.
    """
    if sys.stderr is None:
        _listen_to_nothing()
    options = _parsed(parser_of(_serve, _work), arguments)
    log_to_stderr(serves=options.do in (_serve, _work))
    others = threading.enumerate()
    try:
        status = options.do(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # while somebody can still be told that nobody reads it
    except ConfigurationError as error:
        options.parser.exit(2, f"{options.parser.prog}: {plain(str(error))}\n")
    except (Broken, CannotWrite) as error:
        sys.stderr.write(str(error) if isinstance(error, Broken) else f"genmcp: {error}\n")
        status = 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # after the question that is not answered
        status = _INTERRUPTED
    except BrokenPipeError:  # nobody reads on, as with `| head`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is still to be written
        os.close(nowhere)
        status = _UNHEARD
    _leave(others, status or 0)
    if status:
        sys.exit(status)


_ERROR: Final = 2  # the number of standard error
_INTERRUPTED: Final = 128 + signal.SIGINT
_UNHEARD: Final = 128 + 13  # SIGPIPE, which Windows has no name for
"""What a shell says of a command that was interrupted, and of one nobody listened to."""


def _listen_to_nothing() -> None:
    """Let standard error be something: it is closed, and its number would be that of a file."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != _ERROR:
        os.dup2(nowhere, _ERROR)
        os.close(nowhere)
    sys.stderr = os.fdopen(_ERROR, "w", closefd=False)


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "do"):
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.print_help()
        sys.exit(0)
    if rest and hasattr(options, "given") and not any(each.startswith("-") for each in rest):
        options.given += rest  # key=value after an option, which argparse does not look for
    elif rest:
        target = getattr(options, "target", None) or ":"
        hint = "" if {*" :/"} & {*target} or options.do in (_serve, _work) else quoted(target)
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return options


def _serve(options: argparse.Namespace) -> int:
    values = {name: getattr(options, name) for name in Http.__struct_fields__}
    given = {name: value for name, value in values.items() if value is not None}
    if options.stdio:
        if len(given) > 1:
            raise ConfigurationError("--stdio is served to one client: give no options of HTTP")
        over_streams(options.target)
        return 0
    if given.get("reload") and given.get("workers", 1) > 1:
        raise ConfigurationError("--reload is for one process, without --workers")
    return over_http(Http(**given))


def _work(options: argparse.Namespace) -> None:
    mux = mux_of(options.target)
    app = None if options.lifespan is None else load(options.lifespan)
    if app is not None and not callable(app):
        raise ConfigurationError(f"--lifespan: {options.lifespan} is no application: {app!r}")
    hands = Hands(
        queues=options.queues, concurrency=options.concurrency, shutdown_grace=options.grace
    )
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
