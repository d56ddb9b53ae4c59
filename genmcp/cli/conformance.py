"""`genmcp conformance`: the official suite against a server, run by npx."""

import shutil
import subprocess
from typing import Final

from genmcp.errors import ConfigurationError

__all__ = ["SUITE", "command_of", "conformance"]

SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
_NODE: Final = "node@22"
"""The suite needs functions that older ones lack."""


def command_of(npx: str, url: str, *, revision: str | None, scenario: str | None) -> list[str]:
    """Return the command that runs the suite against *url*."""
    command = [npx, "--yes", "--package", _NODE, "--package", SUITE, "--"]
    command += ["conformance", "server", "--url", url]
    command += [] if revision is None else ["--spec-version", revision]
    return command if scenario is None else [*command, "--scenario", scenario]


def conformance(url: str, *, revision: str | None = None, scenario: str | None = None) -> int:
    """Run the suite against *url*, and return its exit status.

    Raises:
        ConfigurationError: there is no npx to run it with, or the URL is none.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is not a URL (http://host/mcp, https://host/mcp)")
    npx = shutil.which("npx")
    if npx is None:
        raise ConfigurationError("the suite is run by npx, which comes with Node.js: install that")
    command = command_of(npx, url, revision=revision, scenario=scenario)
    return subprocess.run(command, check=False).returncode
