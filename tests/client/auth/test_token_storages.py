"""Every token storage passes the contract."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import keyring
import pytest

from genmcp.client.auth.files import FileTokens
from genmcp.client.auth.keyring_tokens import KeyringTokens
from genmcp.client.auth.store_tokens import StoreTokens
from genmcp.client.auth.tokens import MemoryTokens, TokenStorage
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from tests.client.auth.file_keyring import FileKeyring
from tests.contracts.tokens import TokensContract

SECRET = "a secret for the tests"


class TestMemoryTokens(TokensContract):
    @pytest.fixture
    def tokens(self) -> TokenStorage:
        return MemoryTokens()

    @pytest.fixture
    def impatient(self) -> TokenStorage:
        return MemoryTokens(lock_timeout=0.1)


@pytest.mark.parametrize("secret", [None, SECRET])
class TestFileTokens(TokensContract):
    @pytest.fixture
    def tokens(self, tmp_path: Path, secret: str | None) -> TokenStorage:
        return FileTokens(tmp_path / "new" / "tokens", secret=secret)

    @pytest.fixture
    def impatient(self, tmp_path: Path, secret: str | None) -> TokenStorage:
        return FileTokens(tmp_path / "new", secret=secret, lock_timeout=0.1)


class TestKeyringTokens(TokensContract):
    @pytest.fixture(autouse=True)
    def keyring(self, tmp_path: Path) -> Iterator[None]:
        before = keyring.get_keyring()
        keyring.set_keyring(FileKeyring(tmp_path / "keyring.json"))
        yield
        keyring.set_keyring(before)

    @pytest.fixture
    def tokens(self, tmp_path: Path) -> TokenStorage:
        return KeyringTokens("tests", tmp_path / "tokens")

    @pytest.fixture
    def impatient(self, tmp_path: Path) -> TokenStorage:
        return KeyringTokens("tests", tmp_path / "tokens", lock_timeout=0.1)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestStoreTokens(TokensContract):
    @pytest.fixture
    async def store(self, tmp_path: Path, kind: str) -> AsyncIterator[Store]:
        store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "tokens.sqlite")
        yield store
        await store.aclose()

    @pytest.fixture
    def tokens(self, store: Store) -> TokenStorage:
        return StoreTokens(store, SECRET)

    @pytest.fixture
    def impatient(self, store: Store) -> TokenStorage:
        return StoreTokens(store, SECRET, lock_timeout=0.1)
