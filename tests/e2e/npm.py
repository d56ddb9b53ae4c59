"""Servers from npm that nobody here wrote, installed once into .conformance/.

The versions are exact, and what is installed is used from then on without the network.
"""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSIONS = {
    "server-everything": "2026.8.31",
    "server-filesystem": "2026.8.31",
    "server-memory": "2026.8.31",
}
_SCRIPT = Path(__file__).parents[2] / "scripts" / "conformance"


def npm_servers() -> Callable[[str], list[str]]:
    """Return what gives the command of a server, without its own arguments.

    Raises:
        Exception: npm or a package cannot be had.
    """
    # It installs the conformance suite in the same way, and has found a Node new enough for both.
    script: dict[str, Any] = runpy.run_path(str(_SCRIPT))

    def command(name: str) -> list[str]:
        version = VERSIONS[name]
        package = f"@modelcontextprotocol/{name}"
        try:
            node = script["node_command"]()
            modules = script["installed"](
                f"{name}-{version}", f"{package}@{version}", "--ignore-scripts"
            )
        except script["NoNpm"]:
            raise RuntimeError(
                f"{package} is needed, and npm to install it was not found"
            ) from None
        return [node, str(modules / package / "dist" / "index.js")]

    return command
