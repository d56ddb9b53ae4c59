"""A keyring in a file, for tests: `PYTHON_KEYRING_BACKEND` names it, $FILE_KEYRING is the file."""

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError


class FileKeyring(KeyringBackend):
    """Keeps entries as JSON. Like that of Windows, it refuses those above 2560 bytes."""

    priority = 0.1  # never chosen by itself

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path or Path(os.environ.get("FILE_KEYRING", os.devnull))

    def get_password(self, service: str, username: str) -> str | None:
        return self._entries().get(f"{service}\n{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        if len(password.encode("utf-16-le")) > 2560:
            raise ValueError("the entry is too large")
        self.path.write_text(json.dumps({**self._entries(), f"{service}\n{username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        entries = self._entries()
        if entries.pop(f"{service}\n{username}", None) is None:
            raise PasswordDeleteError
        self.path.write_text(json.dumps(entries))

    def _entries(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        found: dict[str, str] = json.loads(self.path.read_text())
        return found
