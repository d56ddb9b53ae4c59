"""The setting of the engine: `Mux(engine=)` and GENMCP_ENGINE."""

import re
from pathlib import Path

import pytest

from genmcp.errors import ConfigurationError
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from genmcp.tasks import open_engine
from genmcp.tasks.docket import DocketEngine
from genmcp.tasks.engine import Engine, EnginePromise, LocalEngine
from genmcp.tasks.procrastinate import ProcrastinateEngine


class WithoutDeliveries(MemoryStore):
    deliveries = Store.deliveries  # type: ignore[assignment]


@pytest.fixture
def shared(tmp_path: Path) -> Store:
    return SQLiteStore(tmp_path / "tasks.db")


@pytest.mark.parametrize("setting", [None, "", "store"])
def test_default_engine_is_that_of_the_store(setting: str | None) -> None:
    assert isinstance(open_engine(setting, MemoryStore()), LocalEngine)


def test_engine_object_is_used_as_it_is() -> None:
    engine = DocketEngine("redis://127.0.0.1:1")
    assert open_engine(engine, MemoryStore()) is engine


def test_variable_is_used_without_an_argument(
    monkeypatch: pytest.MonkeyPatch, shared: Store
) -> None:
    monkeypatch.setenv("GENMCP_ENGINE", "docket+redis://127.0.0.1:1")
    assert isinstance(open_engine(None, shared), DocketEngine)
    assert isinstance(open_engine("store", shared), LocalEngine)


def test_name_without_url_uses_the_server_of_the_store(shared: Store) -> None:
    shared.url = "redis://127.0.0.1:1"
    assert isinstance(open_engine("docket", shared), DocketEngine)


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("dockit", "'dockit' is unknown; use store, docket"),
        ("kafka+tcp://ann:secret@host", r"'kafka\+tcp://\*\*\*@host' is unknown"),
        ("docket", "needs the URL of a server, and <SQLiteStore.* has none"),
        ("docket+postgresql://host/db", "Redis or Valkey server"),
        (7, "must be an Engine or its name"),
    ],
)
def test_unusable_setting_is_rejected(shared: Store, setting: str, fault: str) -> None:
    """The message names the known engines, and no password."""
    with pytest.raises(ConfigurationError, match=fault) as caught:
        open_engine(setting, shared)
    assert "secret" not in str(caught.value)


def test_engine_of_several_processes_needs_a_shared_store() -> None:
    """Another process would get an id whose task it does not have, and drop it."""
    with pytest.raises(ConfigurationError, match="must share the store"):
        open_engine("docket+redis://127.0.0.1:1", MemoryStore())


def test_store_without_deliveries_needs_an_engine() -> None:
    with pytest.raises(ConfigurationError, match="does not deliver jobs; choose an engine"):
        open_engine(None, WithoutDeliveries())


def test_table_of_engines_shows_their_promises() -> None:
    """docs/engines.md, "Choosing an engine"; the order of the engines is that of the columns."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text("utf-8")
    rows = re.findall(r'^\| <a id="(\S+)"></a>.*? \| (\w+) \| (\w+) \| (\w+) \|$', page, re.M)
    shown = {promise.replace("-", " "): kept for promise, *kept in rows}
    engines: list[type[Engine]] = [LocalEngine, DocketEngine, ProcrastinateEngine]
    assert shown == {
        promise: ["yes" if promise in engine.promises else "no" for engine in engines]
        for promise in EnginePromise
    }
