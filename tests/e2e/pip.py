"""Releases from PyPI that cannot be installed beside ours, each in a folder of .conformance/.

The versions are exact, and what is installed is used from then on without the network.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MCP_1 = "mcp==1.30.0"
_CACHE = Path(__file__).parents[2] / ".conformance"


def pip_environment(*requirements: str) -> Mapping[str, str]:
    """Install *requirements* once; return the environment of a process that imports them first.

    Raises:
        CalledProcessError: one of them cannot be installed.
    """
    folder = _CACHE / "-".join(["pip", *requirements]).replace("==", "-")
    done = folder / "complete"
    if not done.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--upgrade", "--target", str(folder), *requirements], check=True)
        done.touch()
    return {**os.environ, "PYTHONPATH": str(folder)}
