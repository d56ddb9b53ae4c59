"""Third-party servers and tools from npm, installed once into .conformance/.

Later runs use the installation without the network. The versions are in `tests.support.peers`.
"""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.peers import SERVERS

_SCRIPT = Path(__file__).parents[2] / "scripts" / "conformance"


def npm_servers() -> Callable[[str], list[str]]:
    """Return a function from the name of a server to its command.

    Raises:
        Exception: npm is missing, or a package cannot be installed.
    """

    def command(name: str) -> list[str]:
        package = f"@modelcontextprotocol/{name}"
        node, modules = npm_package(package, SERVERS[name])
        return [node, str(modules / package / "dist" / "index.js")]

    return command


def npm_package(package: str, version: str) -> tuple[str, Path]:
    """Install a package once; return Node's command for it, and its node_modules.

    Raises:
        Exception: npm is missing, or the package cannot be installed.
    """
    # The runner of the conformance suite installs packages in the same way, with a suitable Node.
    script: dict[str, Any] = runpy.run_path(str(_SCRIPT))
    try:
        node = script["node_command"]()
        folder = f"{package.rpartition('/')[2]}-{version}"
        modules = script["installed"](folder, f"{package}@{version}", "--ignore-scripts")
    except script["NoNpm"]:
        raise RuntimeError(f"{package} is needed, and npm to install it was not found") from None
    return node, modules
