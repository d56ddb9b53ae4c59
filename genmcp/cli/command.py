"""The `genmcp` command: its commands, its exit status, and its errors."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from typing import Final

import click

from genmcp.cli.output import log_to_stderr, sanitize
from genmcp.cli.parsing import Group
from genmcp.errors import ConfigurationError
from genmcp.version import __version__

_STDERR: Final = 2  # the file descriptor
# The exit statuses that a shell reports for a process that a signal terminated.
_INTERRUPTED: Final = 128 + signal.SIGINT
_BROKEN_PIPE: Final = 128 + 13  # SIGPIPE; Windows has no name for it


class _Commands(Group):
    """All commands. Each is imported when it runs, since the server and the client are large."""

    sections = {
        "Serve": {
            "serve": ("serve", "Serve over HTTP, or over standard streams."),
            "worker": ("worker", "Run jobs, without serving requests."),
            "new": ("new", "Write a project with a tool, a test and a Dockerfile."),
        },
        "Call a server": {
            "call": ("remote", "Call a tool."),
            "tools": ("lists", "List the tools, or show one of them."),
            "read": ("remote", "Read a resource."),
            "resources": ("lists", "List the resources."),
            "templates": ("lists", "List the resource templates."),
            "prompt": ("remote", "Get a prompt."),
            "prompts": ("lists", "List the prompts."),
            "skills": ("skills", "List the skills, or show one of them."),
            "complete": ("remote", "Complete an argument of a prompt or resource template."),
            "discover": ("remote", "Show name, revisions and capabilities."),
            "tasks": ("tasks", "Show, follow, answer and cancel tasks."),
        },
        "Log in at a server": {
            "login": ("login", "Log in, and store the tokens."),
            "logout": ("login", "Revoke and remove the tokens."),
            "auth": ("login", "Explain the steps of a login."),
        },
        "Operate": {
            "jobs": ("operate", "List, show, retry, cancel and drop tasks in a store."),
            "store": ("operate", "Show statistics of a store, check it, migrate its schema."),
        },
        "Publish": {
            "lint": ("lint", "Report tools that known clients reject."),
            "install": ("install", "Print or write a server's entry for a client."),
        },
    }


@click.group(
    "genmcp",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`genmcp COMMAND --help` lists options and examples. Status: 0 success, 1 failure, "
    "2 wrong usage or configuration.",
)
@click.version_option(__version__, message="genmcp %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Servers and clients of the Model Context Protocol."""
    log_to_stderr(serves=context.invoked_subcommand in ("serve", "worker"))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line *argv*, by default that of the process.

    Raises:
        SystemExit: with status 2 for a usage or configuration error, 1 if the command failed. The
            reason is on standard error.
    """
    if sys.stderr is None:
        _open_stderr()
    threads = threading.enumerate()
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # before the exit, so that a broken pipe is handled below
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            sys.stderr.write(f"{error.ctx.get_usage()}\n")
        sys.stderr.write(f"genmcp: {sanitize(error.format_message())}\n")
        status = error.exit_code
    except ConfigurationError as error:
        sys.stderr.write(f"genmcp: {sanitize(str(error))}\n")
        status = 2
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # ends the line of an open prompt
        status = _INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe, as in `genmcp tools x | head`
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # for the rest of the buffer, flushed at exit
        os.close(null)
        status = _BROKEN_PIPE
    _exit_despite_threads(threads, status or 0)
    if status:
        sys.exit(status)


def _open_stderr() -> None:
    """Open the null device as standard error, for a process that was started without it.

    Otherwise the next file that is opened would get descriptor 2, and error messages would be
    written to that file.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    if null != _STDERR:
        os.dup2(null, _STDERR)
        os.close(null)
    sys.stderr = os.fdopen(_STDERR, "w", closefd=False)


def _run(argv: Sequence[str]) -> int:
    """Run the command that *argv* names, and return its exit status.

    `click.Command.main` is not used: it would handle Ctrl-C and a broken pipe in its own way.
    """
    try:
        with commands.make_context("genmcp", [*argv]) as context:
            return commands.invoke(context) or 0
    except click.exceptions.Exit as exit:  # such as after --help
        return exit.exit_code


def _exit_despite_threads(existing: Collection[threading.Thread], status: int) -> None:
    """Exit with *status* at once if a thread other than *existing* is still running.

    Such a thread runs a `def` job, which cannot be cancelled. The job was returned to other workers
    already, and waiting for the thread would keep this process alive.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread not in existing:
            thread.join(0.2)  # an idle thread of an executor is about to end
            if thread.is_alive():
                logging.shutdown()
                os._exit(status)
