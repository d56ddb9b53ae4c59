"""Releases from PyPI that conflict with ours, each installed into a folder of .conformance/.

The versions are exact. Later runs use the installation without the network.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

MCP_1 = ("mcp==1.30.0",)
#: Dependencies of FastMCP's tasks. FastMCP itself is a dependency of the tests.
FASTMCP_TASKS = (
    "fastmcp-tasks==4.1.2",
    "pydocket==0.27.0",
    "burner-redis==0.1.7",
    "cloudpickle==3.1.2",
    "cronsim==2.8",
    "prometheus-client==0.26.0",
    "python-json-logger==4.2.0",
    "redis==8.1.0",
    "shellingham==1.5.4",
    "typer==0.29.2",
)
_CACHE = Path(__file__).parents[2] / ".conformance"


def pip_environment(*requirements: str, complete: bool = True) -> Mapping[str, str]:
    """Install *requirements* once; return an environment whose Python imports them first.

    With *complete*, their dependencies are installed as well.

    Raises:
        CalledProcessError: a package cannot be installed.
    """
    digest = sha256(repr(requirements).encode()).hexdigest()[:8]
    folder = _CACHE / f"pip-{requirements[0].replace('==', '-')}-{digest}"
    done = folder / "complete"
    if not done.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        flags = ["--upgrade", "--target", str(folder), *([] if complete else ["--no-deps"])]
        subprocess.run([*pip, *flags, *requirements], check=True)
        done.touch()
    return {**os.environ, "PYTHONPATH": str(folder)}
