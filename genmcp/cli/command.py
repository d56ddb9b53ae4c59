"""The `genmcp` command: its commands, its exit status, and its errors."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from typing import Final

import click

from genmcp.cli import jobs, lists, login, remote, store, tasks
from genmcp.cli.install import install
from genmcp.cli.lint import lint
from genmcp.cli.new import new
from genmcp.cli.output import OutputError, log_to_stderr
from genmcp.cli.parsing import Group, group, show_commands, usage_error_lines
from genmcp.cli.serve import serve
from genmcp.cli.target import ModuleImportError
from genmcp.cli.worker import worker
from genmcp.client.options import ClientOptions

_STDERR: Final = 2  # the file descriptor
# The exit statuses that a shell reports for a process that a signal terminated.
_INTERRUPTED: Final = 128 + signal.SIGINT
_BROKEN_PIPE: Final = 128 + 13  # SIGPIPE; Windows has no name for it


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
        status = _run(create_group(), sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # before the exit, so that a broken pipe is handled below
    except click.UsageError as error:
        for line in usage_error_lines(error):
            sys.stderr.write(f"{line}\n")
        status = 2
    except ModuleImportError as error:
        sys.stderr.write(str(error))
        status = 1
    except OutputError as error:
        sys.stderr.write(f"genmcp: {error}\n")
        status = 1
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


def _run(commands: Group, argv: Sequence[str]) -> int:
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


def create_group() -> Group:
    """Return the group of all commands."""
    commands = group("genmcp", "servers and clients of the Model Context Protocol")
    version = f"genmcp {ClientOptions().info.version}"
    add_version = click.version_option(version, message=version, help="show the version")
    commands = add_version(commands)
    commands.callback = _configure_logging
    listing = map(lists.list_command, ("resources", "resource templates", "prompts"))
    for each in (
        serve,
        worker,
        jobs.jobs,
        store.store_group,
        remote.discover,
        lists.tools,
        *listing,
        remote.call,
        tasks.tasks,
        remote.read,
        remote.prompt,
        remote.complete,
        login.login,
        login.logout,
        login.auth,
        new,
        lint,
        install,
    ):
        commands.add_command(each)
    return commands


@click.pass_context
def _configure_logging(context: click.Context) -> None:
    log_to_stderr(serves=context.invoked_subcommand in ("serve", "worker"))
    show_commands()
