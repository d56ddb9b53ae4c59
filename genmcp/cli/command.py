"""The `genmcp` command: its argument parser, its exit status, and its errors."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from genmcp._transports.health import HEALTH_PATH, READY_PATH
from genmcp.cli import jobs, login, remote, store
from genmcp.cli.deployment import add_deployment_options
from genmcp.cli.output import OutputError, log_to_stderr, sanitize
from genmcp.cli.serve import ServeOptions, serve_http, serve_stdio_target
from genmcp.cli.target import ModuleImportError, add_target_options, load_attribute, load_mux
from genmcp.cli.worker import DEFAULT_GRACE, METRICS_PATH, HostPort, WorkerOptions, run_worker
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError
from genmcp.tasks.inspection import STATES

Function = Callable[[argparse.Namespace], int | None]
AddParser = Callable[..., argparse.ArgumentParser]  # `add_parser` of the subparsers

_STDERR: Final = 2  # the file descriptor
# The exit statuses that a shell reports for a process that a signal terminated.
_INTERRUPTED: Final = 128 + signal.SIGINT
_BROKEN_PIPE: Final = 128 + 13  # SIGPIPE; Windows has no name for it
_DASHED_ID: Final = re.compile(r"-[\w-]{19,}", re.ASCII)  # of a task; no option is as long
_SERVED: Final = "module:attribute of a Mux, Endpoint, or Server such as a Suite"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line *argv*, by default that of the process.

    Raises:
        SystemExit: with status 2 for a usage or configuration error, 1 if the command failed. The
            reason is on standard error.
    """
    if sys.stderr is None:
        _open_stderr()
    arguments = _parse(create_parser(), argv)
    log_to_stderr(serves=arguments.function in (_serve, _work))
    threads = threading.enumerate()
    try:
        status = arguments.function(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # before the exit, so that a broken pipe is handled below
    except ConfigurationError as error:
        arguments.parser.exit(2, f"{arguments.parser.prog}: {sanitize(str(error))}\n")
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


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    argv = sys.argv[1:] if argv is None else argv
    if list(argv[:1]) == ["jobs"]:
        # With a space in front, argparse does not take an id for an option. `_id` strips it.
        argv = [f" {each}" if _DASHED_ID.fullmatch(each) else each for each in argv]
    arguments, rest = parser.parse_known_args(argv)
    if not hasattr(arguments, "function"):
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.print_help()
        sys.exit(0)
    if rest and hasattr(arguments, "pairs") and not any(each.startswith("-") for each in rest):
        arguments.pairs += rest  # key=value after an option, which argparse does not assign
    elif rest:
        target = getattr(arguments, "target", None) or ":"
        is_quoted = {*" :/"} & {*target} or arguments.function in (_serve, _work)
        hint = "" if is_quoted else remote.quoting_hint(target)
        arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return arguments


def _serve(arguments: argparse.Namespace) -> int:
    values = {name: getattr(arguments, name) for name in ServeOptions.__struct_fields__}
    given = {name: value for name, value in values.items() if value is not None}
    if arguments.stdio:
        if len(given) > 1:  # other than the target
            raise ConfigurationError("--stdio cannot be combined with options for HTTP")
        serve_stdio_target(arguments.target)
        return 0
    if given.get("reload") and given.get("workers", 1) > 1:
        raise ConfigurationError("--reload cannot be combined with --workers")
    return serve_http(ServeOptions(**given))


def _work(arguments: argparse.Namespace) -> None:
    mux = load_mux(arguments.target)
    app = None if arguments.lifespan is None else load_attribute(arguments.lifespan)
    if app is not None and not callable(app):
        raise ConfigurationError(
            f"--lifespan: {arguments.lifespan} is not an ASGI application: {app!r}"
        )
    options = WorkerOptions(
        queues=arguments.queues, concurrency=arguments.concurrency, shutdown_grace=arguments.grace
    )
    if arguments.metrics and arguments.health is None:
        raise ConfigurationError("--metrics needs an address: --health HOST:PORT")
    health, metrics = arguments.health, arguments.metrics
    asyncio.run(run_worker(mux, options, app, health=health, metrics=metrics))


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


def create_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="genmcp", description="Servers and clients of the Model Context Protocol."
    )
    version = ClientOptions().info.version
    parser.add_argument("--version", action="version", version=f"genmcp {version}")
    add_parser = parser.add_subparsers(title="commands", metavar="command").add_parser
    _add_serve(add_parser)
    _add_worker(add_parser)
    _add_jobs(add_parser)
    _add_store(add_parser)
    _add_lists(add_parser)
    _add_requests(add_parser)
    _add_logins(add_parser)
    return parser


def _add_command(
    add_parser: AddParser, name: str, function: Function, help: str
) -> argparse.ArgumentParser:
    parser = add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(function=function, parser=parser)
    return parser


def _add_serve(add_parser: AddParser) -> None:
    help = "serve over HTTP, or over standard streams, until SIGTERM or SIGINT"
    serve = _add_command(add_parser, "serve", _serve, help)
    serve.add_argument("target", help=_SERVED)
    help = "serve the client that started this process over standard input and output"
    serve.add_argument("--stdio", action="store_true", help=help)
    default = ServeOptions(target="")
    # These options have no defaults here, so that `_serve` can recognize options that were given.
    add = serve.add_argument_group("HTTP").add_argument
    add("--host", help=f"the address to listen on ({default.host})")
    add("--port", type=_port, metavar="N", help=f"the port ({default.port}); 0 is any free port")
    add("--path", help=f"the path of the URL ({default.path})")
    add("--workers", type=_count, metavar="N", help="the number of processes (1)")
    help = "a host name to accept, '*' for any; repeatable"
    add("--allowed-host", action="append", dest="allowed_hosts", metavar="NAME", help=help)
    help = "how long open calls and running jobs may continue at shutdown"
    add("--grace", type=_seconds, metavar="SECONDS", help=help)
    help = (
        "how long to accept requests after SIGTERM, while the server reports that it is not ready"
    )
    add("--drain", type=_seconds, metavar="SECONDS", help=f"{help} ({default.drain:g})")
    help = "the path that responds while the process is alive"
    add("--health-path", metavar="PATH", help=f"{help} ({default.health_path})")
    help = "the path that responds whether requests should be sent here"
    add("--ready-path", metavar="PATH", help=f"{help} ({default.ready_path})")
    add("--no-health", action="store_true", default=None, help="serve neither of these paths")
    help = f"serve {METRICS_PATH} for Prometheus (extra: prometheus)"
    add("--metrics", action="store_true", default=None, help=help)
    help = "take client address and scheme from X-Forwarded-For and X-Forwarded-Proto"
    add("--proxy-headers", action="store_true", default=None, help=f"{help}, set by a proxy")
    help = "trusted proxies (127.0.0.1), separated by commas; implies --proxy-headers"
    add("--forwarded-allow-ips", metavar="ADDRESSES", help=help)
    add("--reload", action="store_true", default=None, help="restart when a file changes")
    help = "serve a page with which to try the server in a browser"
    add("--console", action="store_true", default=None, help=help)


def _add_worker(add_parser: AddParser) -> None:
    help = "run jobs, without serving requests, until SIGTERM or SIGINT"
    add = _add_command(add_parser, "worker", _work, help).add_argument
    add("target", help=_SERVED)
    help = "module:attribute of an ASGI application to start before, and to shut down after"
    add("--lifespan", metavar="APP", help=help)
    help = "a queue to run jobs of, instead of those in JobOptions; repeatable"
    add("--queue", action="append", dest="queues", metavar="NAME", help=help)
    add("--concurrency", type=_count, metavar="N", help="the number of concurrent jobs")
    help = f"how long running jobs may continue at shutdown ({DEFAULT_GRACE:g})"
    add("--grace", type=_seconds, default=DEFAULT_GRACE, metavar="SECONDS", help=help)
    help = f"serve {HEALTH_PATH} and {READY_PATH} here, for the probes of a supervisor"
    add("--health", type=_address, metavar="HOST:PORT", help=help)
    help = f"serve {METRICS_PATH} for Prometheus at the address of --health (extra: prometheus)"
    add("--metrics", action="store_true", help=help)


def _add_group(add_parser: AddParser, name: str, help: str) -> AddParser:
    """Add a command that has commands of its own, and return their `add_parser`."""
    parser = _add_command(add_parser, name, lambda arguments: parser.print_help(), help)
    added: AddParser = parser.add_subparsers(title="commands", metavar="command").add_parser
    return added


def _add_jobs(add_parser: AddParser) -> None:
    add_parser = _add_group(
        add_parser, "jobs", "list, show, retry, cancel and drop tasks in a store"
    )
    listing = _add_command(add_parser, "list", jobs.list_jobs, "list tasks, by default open ones")
    help = "a state to list; repeatable"
    listing.add_argument("--state", action="append", choices=STATES, help=help)
    listing.add_argument("--queue", metavar="NAME", help="list the open tasks of a queue")
    listing.add_argument("--owner", metavar="NAME", help="list the tasks of a principal")
    help = "the maximum number of tasks (100)"
    listing.add_argument("--limit", type=_count, default=100, metavar="N", help=help)
    showing = _add_command(add_parser, "show", jobs.show_job, "show a task and its messages")
    showing.add_argument("id", type=_id, help="the id of the task")
    help = "repeat the jobs of failed tasks, as new tasks"
    retrying = _add_command(add_parser, "retry", jobs.retry_jobs, help)
    help = "cancel tasks that have not ended"
    cancelling = _add_command(add_parser, "cancel", jobs.cancel_jobs, help)
    help = "delete the records of tasks that have ended"
    dropping = _add_command(add_parser, "drop", jobs.drop_jobs, help)
    for parser in (retrying, cancelling, dropping):
        parser.add_argument("ids", nargs="+", type=_id, metavar="id", help="the id of a task")
    for parser in (listing, showing, retrying, cancelling, dropping):
        add_deployment_options(parser)


def _add_store(add_parser: AddParser) -> None:
    add_parser = _add_group(
        add_parser, "store", "show statistics of a store, check it, and migrate its schema"
    )
    help = "show how full a store is, and the queues and tasks of its services"
    add_deployment_options(_add_command(add_parser, "stats", store.show_stats, help))
    help = "write to a store and read from it, and report problems; status 1 if there are any"
    add_deployment_options(_add_command(add_parser, "check", store.check_store, help))
    help = "create or update the schema of a store such as PostgreSQL, and the tables of an engine"
    migrating = _add_command(add_parser, "migrate", store.migrate_store, help)
    help = "show what would be done, and change nothing"
    migrating.add_argument("--dry-run", action="store_true", help=help)
    add_deployment_options(migrating)


def _add_remote(
    add_parser: AddParser, name: str, function: Function, help: str
) -> argparse.ArgumentParser:
    """Add a command that talks to a server as a client."""
    parser = _add_command(add_parser, name, function, help)
    add_target_options(parser)
    parser.add_argument("--json", action="store_true", help="write the whole result as JSON")
    help = "write to FILE instead of standard output"
    parser.add_argument("-o", "--output", metavar="FILE", help=help)
    return parser


def _add_lists(add_parser: AddParser) -> None:
    _add_remote(add_parser, "discover", remote.discover, "show the capabilities of a server")
    for kind in ("tools", "resources", "resource templates", "prompts"):
        function = partial(remote.list_components, kind)
        name = kind.removeprefix("resource ")
        _add_remote(add_parser, name, function, f"list the {kind} of a server")


def _add_requests(add_parser: AddParser) -> None:
    pairs: dict[str, Any] = {"nargs": "*", "metavar": "key=value"}
    add = _add_remote(add_parser, "call", remote.call, "call a tool of a server").add_argument
    add("name", help="the tool")
    help = "arguments, converted by the schema of the tool; lists are split at commas"
    add("pairs", help=f"{help}; key:=value is JSON", **pairs)
    help = "arguments as a JSON object; @FILE reads a file, - reads standard input"
    add("--arguments", metavar="JSON", help=help)
    add = _add_remote(add_parser, "read", remote.read, "read a resource of a server").add_argument
    add("uri", help="the resource")
    add = _add_remote(add_parser, "prompt", remote.prompt, "get a prompt of a server").add_argument
    add("name", help="the prompt")
    add("pairs", help="arguments", **pairs)
    help = "list the completions of an argument"
    add = _add_remote(add_parser, "complete", remote.complete, help).add_argument
    add("name", help="the prompt, or the resource template")
    add("argument", help="the argument, or the variable of the template")
    add("value", nargs="?", default="", help="the beginning of the value")
    add("pairs", help="the other arguments", **pairs)


def _add_logins(add_parser: AddParser) -> None:
    help = "log in at a server over HTTP, and store the tokens"
    parser = _add_command(add_parser, "login", login.login, help)
    login.add_server_options(parser)
    login.add_login_options(parser)
    help = "print the URL only; the URL of the redirect can be pasted"
    parser.add_argument("--no-browser", action="store_false", dest="browser", help=help)
    help = "the port of the redirect URI, for a client that is registered with one"
    parser.add_argument("--port", type=_port, default=0, metavar="N", help=help)
    help = "how long the user may take (300)"
    parser.add_argument("--login-timeout", type=_seconds, metavar="SECONDS", help=help)
    help = "revoke and remove the tokens of a login; status 1 if they cannot be revoked"
    login.add_server_options(_add_command(add_parser, "logout", login.logout, help))
    help = "explain the steps of a login; status 1 if a client could not log in"
    parser = _add_command(add_parser, "auth", login.auth, help)
    login.add_server_options(parser)
    login.add_login_options(parser)


def _id(text: str) -> str:
    return text.strip()


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def _address(text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
