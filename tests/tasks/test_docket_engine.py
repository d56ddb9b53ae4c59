"""The contract of engines, on `DocketEngine` and a real Redis server."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from genmcp.errors import ConfigurationError
from genmcp.tasks.docket import DocketEngine
from genmcp.tasks.engine import Engine
from genmcp.testing.contracts.engine_processes import EngineService, ServiceEngineContract
from tests.support.redis_server import RedisServer


@asynccontextmanager
async def docket_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(DocketEngine(url, reconnect_delay=0.2)) as engine:
        yield engine


class TestDocket(ServiceEngineContract):
    factory = "tests.tasks.test_docket_engine:docket_engine"

    @pytest.fixture
    async def service(self) -> AsyncIterator[EngineService]:
        async with RedisServer() as server:
            yield server


@pytest.mark.parametrize("url", ["memory://", "postgresql://localhost/x", "localhost:6379"])
def test_url_of_another_service_is_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis or Valkey"):
        DocketEngine(url)


def test_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['docket'] = None; import genmcp.tasks.docket"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'ConfigurationError: the engine "docket" needs an extra' in ended.stderr
    assert 'pip install "genmcp[docket]"' in ended.stderr


def test_docket_is_imported_when_it_is_used() -> None:
    code = "import sys, genmcp, genmcp.cli; print('docket' in sys.modules, 'redis' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "False"]
