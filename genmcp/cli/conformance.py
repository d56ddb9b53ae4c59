"""`genmcp conformance`: the official suite against a server or a client, run by npx."""

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import uvicorn

from genmcp.cli.reach import URL
from genmcp.cli.serve import Http, endpoint_of, served
from genmcp.cli.target import ATTRIBUTE
from genmcp.cli.verdicts import Verdicts
from genmcp.errors import ConfigurationError

__all__ = ["SUITE", "conformance"]

SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
_NODE: Final = "node@22"
"""The suite needs functions that older ones lack."""

_QUIET: Final = {
    "NO_COLOR": "1",
    "NPM_CONFIG_LOGLEVEL": "error",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
    "NPM_CONFIG_FUND": "false",
}
_EXCERPT: Final = 40  # lines of what the suite says when it fails for no check
_PATIENCE: Final = 10  # seconds for a server to take a connection


def conformance(given: argparse.Namespace) -> int:
    """Run the suite as it is *given*; return 1 if it is not content.

    Raises:
        ConfigurationError: there is no npx to run it with, the target is none, or the suite does
            not know the revision or the scenario.
    """
    npx = shutil.which("npx")
    if npx is None:
        raise ConfigurationError("the suite is run by npx, which comes with Node.js: install that")
    suite = [npx, "--yes", "--package", _NODE, "--package", SUITE, "--", "conformance"]
    if given.list:
        side = "--client" if given.client else "--server"
        revision = ["--spec-version", given.spec_version] if given.spec_version else []
        command = [*suite, "list", side, *revision]
        return subprocess.run(command, env={**os.environ, **_QUIET}, check=False).returncode
    _look_at(given)
    if given.client is not None:
        return _run([*suite, "client", "--command", given.client], given)
    with _url_of(given.target) as url:
        if (why := _unreachable(url)) is not None:
            sys.stderr.write(f"genmcp: cannot reach {url}: {why}\n")
            return 1
        return _run([*suite, "server", "--url", url], given)


def _look_at(given: argparse.Namespace) -> None:
    """Refuse what makes no sense before the suite is downloaded."""
    if given.target is None and given.client is None:
        raise ConfigurationError("name a server, or a client with --client COMMAND")
    if given.target is not None and given.client is not None:
        raise ConfigurationError(
            f"name a server or a client: --client is given, and {given.target!r}"
        )
    if (file := given.expected_failures) is not None and not Path(file).is_file():
        raise ConfigurationError(f"--expected-failures: there is no file {file!r}")
    try:
        shlex.split(given.client or "")
    except ValueError as error:
        raise ConfigurationError(f"--client: {given.client!r} is no command: {error}") from None


def _run(command: Sequence[str], given: argparse.Namespace) -> int:
    """Run *command* with the other options, for each scenario once; return the exit status."""
    options = [] if given.spec_version is None else ["--spec-version", given.spec_version]
    if given.expected_failures is not None:
        options += ["--expected-failures", given.expected_failures]
    runs = [["--scenario", each] for each in given.scenarios or ()]
    status = 0
    with tempfile.TemporaryDirectory(prefix="genmcp-conformance-") as folder:
        verdicts = Verdicts(Path(folder), _say)
        for which in runs or [["--suite", given.suite]]:
            verdicts.begin()
            scenarios, failed = verdicts.scenarios, verdicts.failed
            ended = _take([*command, *options, *which, "-o", folder], verdicts, given.verbose)
            if verdicts.scenarios == scenarios:
                raise ConfigurationError(_refusal(verdicts.other))
            if ended and verdicts.failed == failed and not given.verbose:
                sys.stderr.write("".join(f"{each}\n" for each in verdicts.other[-_EXCERPT:]))
            status = status or int(ended != 0)
    _say(verdicts.summary())
    return status


def _take(command: Sequence[str], verdicts: Verdicts, verbose: bool) -> int:
    """Run *command*, let *verdicts* take what it prints, and return its exit status."""
    with subprocess.Popen(
        command,
        env={**os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            if verbose:
                sys.stderr.write(printed)
            verdicts.take(printed)
    return process.returncode


def _refusal(said: Sequence[str]) -> str:
    """Return why the suite has run nothing, of what it *said*."""
    why = "; ".join(each.strip().rstrip(":") for each in said[:2]) or "it does not say why"
    return f"the suite has run nothing: {why}; --list shows the scenarios"


@contextmanager
def _url_of(target: str) -> Iterator[str]:
    """Give the URL that *target* is, or that of what it names, served for as long as it takes."""
    if URL.match(target):
        yield target
        return
    if not ATTRIBUTE.fullmatch(target):
        raise ConfigurationError(
            f"{target!r} is neither a URL (http://host/mcp, https://host/mcp) nor module:attribute"
        )
    http = Http(target=target)
    app = served(endpoint_of(http), http.path)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}{http.path}"
        finally:
            server.should_exit = True
            thread.join()


def _unreachable(url: str) -> str | None:
    """Return why nobody can be reached at *url*, None if somebody can."""
    at = urlsplit(url)
    try:
        address = (at.hostname or "", at.port or (443 if at.scheme == "https" else 80))
        socket.create_connection(address, _PATIENCE).close()
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
