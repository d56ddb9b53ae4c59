"""Which store a URL means."""

from pathlib import Path

import pytest

from genmcp.errors import ConfigurationError
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore


def test_store_url_names_a_file_or_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slashes before a relative path, four before an absolute one."""
    monkeypatch.chdir(tmp_path)

    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store("sqlite:///a b.db"), SQLiteStore)
    assert isinstance(open_store(f"sqlite:///{tmp_path}/absolute.db"), SQLiteStore)
    assert {file.name for file in tmp_path.iterdir()} == {"a b.db", "absolute.db"}


@pytest.mark.parametrize(
    "url", ["", "memory", "sqlite://", "sqlite:///", "sqlite://studio.db", "redis:///studio"]
)
def test_unsupported_store_url_is_rejected(url: str) -> None:
    """The message names the accepted URLs."""
    with pytest.raises(ConfigurationError, match="sqlite:////absolute/path or memory://") as caught:
        open_store(url)
    assert repr(url) in str(caught.value)
