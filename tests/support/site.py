"""The documentation site as `scripts/docs` builds it, served on loopback."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
BUILD_TIMEOUT = 240  # seconds, beside other tests


def built_site() -> Path:
    """Return the folder of the site, built again if a page or the code is newer."""
    made_of = [
        ROOT / "mkdocs.yml",
        *(ROOT / "docs").rglob("*.*"),
        *(ROOT / "genmcp").rglob("*.py"),
        *(ROOT / "scripts" / name for name in ("docs", "signatures.py", "site.py")),
    ]
    with FileLock(Path(sys.prefix) / "site.lock"):  # one of the processes that run tests builds it
        last = SITE / "llms-full.txt"  # written at the end
        newest = max(path.stat().st_mtime for path in made_of)
        if not last.exists() or last.stat().st_mtime < newest:
            subprocess.run([ROOT / "scripts" / "docs"], check=True, timeout=BUILD_TIMEOUT)
    return SITE


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def served_site() -> Iterator[str]:
    """Serve the site, and yield its URL."""
    handler = partial(_Quiet, directory=str(built_site()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
