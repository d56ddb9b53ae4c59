"""The stores of URLs."""

import subprocess
import sys
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
    "url", ["", "memory", "memory://a", "sqlite://", "sqlite:///", "sqlite://studio.db", "mysql://"]
)
def test_unsupported_store_url_is_rejected(url: str) -> None:
    """The message names the accepted URLs."""
    with pytest.raises(ConfigurationError, match="sqlite:////absolute/path, memory://") as caught:
        open_store(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://ann:secret@db.example/tasks?password=secret", "'mysql://***@db.example/tasks'"),
        ("redis:/ann:secret@db.example", "'***@db.example'"),
        ("sqlite:ann:se@secret@db.example", "'***@db.example'"),
        ("mysql://ann:secret?secret@db.example", "'mysql://***'"),
    ],
)
def test_error_for_a_store_url_has_no_password(url: str, shown: str) -> None:
    """The message is printed and logged: it shows the scheme and the host only."""
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert shown in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "extra"), [("redis", "redis"), ("postgresql", "postgres")])
def test_scheme_without_its_extra_names_the_extra(scheme: str, extra: str) -> None:
    """Without the client library the message names the extra, and no client is imported."""
    code = (
        "import sys, genmcp.stores\n"
        "sys.modules.update(redis=None, psycopg=None)\n"
        f"genmcp.stores.open_store('{scheme}://127.0.0.1:1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert f'pip install "genmcp[{extra}]"' in done.stderr.splitlines()[-1]


def install(folder: Path, name: str, value: str) -> None:
    """Add an installed package with one entry point for stores to *folder*."""
    metadata = folder / "thirdparty-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0"
    )
    metadata.joinpath("entry_points.txt").write_text(f"[genmcp.stores]\n{name} = {value}")
    folder.joinpath("thirdparty.py").write_text(
        "from genmcp import MemoryStore\n"
        "class ThirdStore(MemoryStore):\n"
        "    @classmethod\n"
        "    def from_url(cls, url):\n"
        "        store = cls()\n"
        "        store.url = url\n"
        "        return store\n"
    )


def test_package_adds_a_scheme_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callable gets the whole URL, and unknown schemes name it among the others."""
    install(tmp_path, "third", "thirdparty:ThirdStore.from_url")
    monkeypatch.syspath_prepend(tmp_path)

    store = open_store("third://host/1?a=b")
    assert vars(store)["url"] == "third://host/1?a=b"
    with pytest.raises(ConfigurationError, match="or third://"):
        open_store("fourth://host")
