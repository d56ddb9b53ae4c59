"""Every token storage passes the contract, also those that docs/how-to/client-tokens.md shows."""

import sys
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import keyring
import pytest

from genmcp.client.auth import FileTokens, MemoryTokens, TokenStorage
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from tests.client.auth.file_keyring import FileKeyring
from tests.contracts.tokens import KEY, RECORD, TokensContract, save
from tests.support.documented import write_examples

SECRET = "a secret for the tests"


class TestMemoryTokens(TokensContract):
    @pytest.fixture
    def tokens(self) -> TokenStorage:
        return MemoryTokens()


@pytest.mark.parametrize("secret", [None, SECRET])
class TestFileTokens(TokensContract):
    @pytest.fixture
    def tokens(self, tmp_path: Path, secret: str | None) -> TokenStorage:
        return FileTokens(tmp_path / "new" / "tokens", secret=secret)


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the modules of the page by their names."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    write_examples("how-to/client-tokens", folder)
    monkeypatch.syspath_prepend(folder)
    yield import_module
    for name in ("store_tokens", "keyring_tokens"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestStoreTokens(TokensContract):
    @pytest.fixture
    async def tokens(self, tmp_path: Path, kind: str, recipes: Any) -> AsyncIterator[TokenStorage]:
        store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "tokens.sqlite")
        tokens: TokenStorage = recipes("store_tokens").StoreTokens(store, SECRET)
        yield tokens
        await store.aclose()


class TestKeyringTokens(TokensContract):
    @pytest.fixture(autouse=True)
    def keyring(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "keyring.json"
        monkeypatch.setattr(keyring.core, "_keyring_backend", FileKeyring(path))
        return path

    @pytest.fixture
    def tokens(self, tmp_path: Path, recipes: Any) -> TokenStorage:
        storage: TokenStorage = recipes("keyring_tokens").keyring_tokens(tmp_path / "tokens")
        return storage

    async def test_secret_of_the_keyring_opens_the_files(
        self, tokens: TokenStorage, tmp_path: Path, recipes: Any
    ) -> None:
        """The next process has the same secret."""
        await save(tokens, RECORD)

        again = recipes("keyring_tokens").keyring_tokens(tmp_path / "tokens")
        assert await again.load(KEY) == RECORD
        (path,) = (tmp_path / "tokens").glob("*.json")
        assert path.read_bytes().startswith(b"g1")
