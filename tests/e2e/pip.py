"""Releases from PyPI that conflict with ours, each installed into a folder of .conformance/.

Later runs use the installation without the network. The versions are in `tests.support.peers`.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

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
