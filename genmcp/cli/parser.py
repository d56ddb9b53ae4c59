"""The commands, and what they take."""

import argparse
import threading
from collections.abc import Callable
from typing import Any, Final

from genmcp.cli import remote
from genmcp.cli.reach import add_options
from genmcp.cli.serve import Http
from genmcp.cli.worker import GRACE
from genmcp.client.options import ClientOptions

__all__ = ["parser_of"]

Do = Callable[[argparse.Namespace], int | None]
Commands = argparse._SubParsersAction  # argparse has no public name for it

_SERVED: Final = "module:attribute of a Mux, Endpoint, or Server such as a Suite"


def parser_of(serve: Do, work: Do) -> argparse.ArgumentParser:
    """Return a parser of all commands; *serve* and *work* do two of them."""
    parser = argparse.ArgumentParser(
        prog="genmcp", description="Servers and clients of the Model Context Protocol."
    )
    version = ClientOptions().info.version
    parser.add_argument("--version", action="version", version=f"genmcp {version}")
    commands = parser.add_subparsers(title="commands", metavar="command")
    _add_serve(commands, serve)
    _add_worker(commands, work)
    _add_lists(commands)
    _add_uses(commands)
    return parser


def _command(
    commands: "Commands[argparse.ArgumentParser]",
    name: str,
    do: Do,
    *,
    help: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    text = description or f"{help[0].upper()}{help[1:]}."
    parser = commands.add_parser(name, help=help, description=text)
    parser.set_defaults(do=do, parser=parser)
    return parser


def _add_serve(commands: "Commands[argparse.ArgumentParser]", do: Do) -> None:
    serve = _command(
        commands,
        "serve",
        do,
        help="serve over HTTP, or over standard streams",
        description="Serves a server, until SIGTERM or SIGINT.",
    )
    serve.add_argument("target", help=_SERVED)
    serve.add_argument(
        "--stdio",
        action="store_true",
        help="serve the one client that has started this process, until its input ends",
    )
    there = Http(target="")
    http = serve.add_argument_group("over HTTP")
    http.add_argument("--host", help=f"the address ({there.host})")
    http.add_argument(
        "--port", type=_port, metavar="N", help=f"the port ({there.port}); 0 is any that is free"
    )
    http.add_argument("--path", help=f"the path of the URL ({there.path})")
    http.add_argument("--workers", type=_number, metavar="N", help="how many processes serve (1)")
    http.add_argument(
        "--allowed-host",
        action="append",
        dest="allowed_hosts",
        metavar="NAME",
        help="a host name to answer to, '*' is any; repeatable",
    )
    http.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="how long running jobs may continue at shutdown (JobOptions.shutdown_grace)",
    )
    http.add_argument(
        "--proxy-headers",
        action="store_true",
        default=None,
        help="take the address and scheme of a client from X-Forwarded-For and X-Forwarded-Proto: "
        "for a server behind a proxy that sets them",
    )
    http.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="from which addresses (127.0.0.1), with commas between them; implies --proxy-headers",
    )
    http.add_argument(
        "--reload", action="store_true", default=None, help="start anew when a file changes"
    )


def _add_worker(commands: "Commands[argparse.ArgumentParser]", do: Do) -> None:
    worker = _command(
        commands,
        "worker",
        do,
        help="work on jobs, without serving",
        description="Works on the jobs of a server, until SIGTERM or SIGINT.",
    )
    worker.add_argument("target", help=_SERVED)
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
        help="a queue whose jobs are taken, instead of those in JobOptions; repeatable",
    )
    worker.add_argument("--concurrency", type=_number, metavar="N", help="how many jobs at once")
    worker.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"how long what runs may go on when the worker is to stop ({GRACE:g})",
    )


def _remote(
    commands: "Commands[argparse.ArgumentParser]", name: str, do: Do, help: str
) -> argparse.ArgumentParser:
    parser = _command(commands, name, do, help=help)
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="show the whole result, as JSON")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE instead of standard output"
    )
    return parser


def _add_lists(commands: "Commands[argparse.ArgumentParser]") -> None:
    _remote(commands, "discover", remote.discover, "show what a server is")
    _remote(commands, "tools", remote.tools, "show the tools of a server")
    _remote(commands, "resources", remote.resources, "show the resources of a server")
    _remote(commands, "templates", remote.templates, "show the resource templates of a server")
    _remote(commands, "prompts", remote.prompts, "show the prompts of a server")


def _add_uses(commands: "Commands[argparse.ArgumentParser]") -> None:
    given: dict[str, Any] = {"nargs": "*", "metavar": "key=value"}
    calls = _remote(commands, "call", remote.call, "call a tool of a server")
    calls.add_argument("name", help="the tool")
    calls.add_argument(
        "given",
        help="arguments, read as the tool's schema says: lists at commas, yes or no; "
        "key:=value is JSON",
        **given,
    )
    calls.add_argument(
        "--arguments",
        metavar="JSON",
        help="arguments as a JSON object; @FILE reads a file, - reads standard input",
    )
    reads = _remote(commands, "read", remote.read, "show a resource of a server")
    reads.add_argument("uri", help="the resource")
    prompts = _remote(commands, "prompt", remote.prompt, "show a prompt of a server")
    prompts.add_argument("name", help="the prompt")
    prompts.add_argument("given", help="arguments", **given)
    completes = _remote(
        commands, "complete", remote.complete, "show how an argument of a prompt may go on"
    )
    completes.add_argument("name", help="the prompt, or the resource template")
    completes.add_argument("argument", help="the argument, or the variable of the template")
    completes.add_argument("value", nargs="?", default="", help="what is typed so far")
    completes.add_argument("given", help="the arguments that are complete", **given)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


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
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
