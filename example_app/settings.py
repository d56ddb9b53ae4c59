"""Where calls are kept that outlive their request, and the secret that seals what clients hold.

Both are files beside the database unless the environment says something else, so that a restart
finds them again, and so do other workers on this machine.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["secret_for", "store_for"]


def store_for(database: Path) -> str:
    """Return the URL of the store: GENMCP_STORE, or else a SQLite file beside *database*."""
    beside = f"sqlite:///{database.with_suffix('.calls.db')}"
    return os.environ.get("GENMCP_STORE") or beside


def secret_for(database: Path) -> str:
    """Return GENMCP_SECRET, or else what is in a file beside *database*, made at the first start.

    Whoever can read that file can forge what clients hold. In production give the variable.
    """
    if chosen := os.environ.get("GENMCP_SECRET"):
        return chosen
    path = database.with_suffix(".secret")
    if not path.exists():
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(32), encoding="ascii")
        with suppress(FileExistsError):  # of several processes that start at once, the first counts
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text(encoding="ascii")
