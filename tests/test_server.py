"""A server written by hand, and one that wraps another, as the pages show them."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from genmcp import Channel, ConfigurationError, Continue, Suite, Tool, ToolError, ToolRequest
from genmcp.core.request import Request
from genmcp.protocol.value import Result
from genmcp.server import Middleware
from genmcp.testing import connect
from tests.support.speaking import VERSIONS, speak

PAGES = Path(__file__).parent.parent / "docs" / "how-to"
BLOCK = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown(page: str, name: str) -> Any:
    """Return the module that *page* shows under this name."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    (code,) = [code for found, code in BLOCK.findall(text) if found == name]
    module = ModuleType(name)
    exec(compile(code, f"{name}.py", "exec"), vars(module))
    return module


@pytest.fixture
def shop() -> Any:
    return shown("custom-server", "by_hand").shop


@pytest.fixture
def timed() -> Any:
    return shown("middleware", "timed").timed


@pytest.mark.parametrize("version", VERSIONS)
async def test_server_written_by_hand_serves_every_revision(version: str, shop: Any) -> None:
    """It contains no code for revisions, sessions or HTTP."""
    async with speak(shop, version) as client:
        listed = (await client.request("tools/list", {})).result["tools"]
        bought = await client.call("pear", {"count": 3})
        one = await client.call("apple")

    assert [tool["name"] for tool in listed] == ["apple", "pear"]
    assert (bought.text, one.text) == ("12 coins", "3 coins")


async def test_server_written_by_hand_gets_only_valid_requests(shop: Any) -> None:
    """The mux itself responds for unknown names and for methods that the server does not offer."""
    async with speak(shop) as client:
        plum = await client.call("plum")
        prompts = await client.request("prompts/list", {})
        wrong = await client.call("pear", {"count": "x"})

    assert plum.error["code"] == -32602
    assert (prompts.status, prompts.error["code"]) == (404, -32601)
    assert (wrong.error["code"], wrong.error["message"]) == (-32602, "count must be an integer")


async def test_server_that_returns_an_invalid_result_is_logged(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that is not a Result is an internal error, and logged."""

    class Nonsense(Middleware):
        async def handle(self, request: Request, channel: Channel) -> Result:
            return "12 coins"  # type: ignore[return-value]

    async with speak(Nonsense(shop)) as client:
        answer = await client.call("pear")

    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert "Nonsense answered tools/call with str, not a result" in caplog.text


@pytest.mark.parametrize("version", VERSIONS)
async def test_server_wrapper_measures_each_call(version: str, timed: Any) -> None:
    """The wrapper measures each call, and forwards everything."""
    async with speak(timed, version) as client:
        listed = (await client.request("tools/list", {})).result["tools"]
        answer = await client.call("divide", {"a": 1, "b": 2})

    assert [tool["name"] for tool in listed][:2] == ["divide", "forget"]
    assert answer.text == "0.5"
    name, ended, seconds = timed.took[-1]
    assert (name, ended) == ("divide", "done")
    assert 0 <= seconds < 5


async def test_server_wrapper_may_replace_an_exception() -> None:
    """An exception of the inner server propagates to the middleware, which may replace it."""

    class Fail(Tool):
        name = "fail"

        async def call(self, request: ToolRequest, channel: Channel) -> None:
            raise KeyError("secret")

    class Kind(Middleware):
        async def handle(self, request: Request, channel: Channel) -> Result | Continue:
            try:
                return await super().handle(request, channel)
            except KeyError:
                raise ToolError("That is not there.") from None

    async with connect(Kind(Suite(name="test", version="1", tools=[Fail]))) as client:
        result = await client.call("fail")

    assert result.is_error
    assert result.content[0].text == "That is not there."  # type: ignore[union-attr]


async def test_server_wrapper_has_the_metadata_of_the_inner_server() -> None:
    """Name, version, capabilities and instructions are those of the inner server."""
    outer = Middleware(Suite(name="calculator", version="1.0", instructions="Add."))

    async with speak(outer, "2025-11-25") as client:
        result = (await client.initialize()).result

    assert result["serverInfo"] == {"name": "calculator", "version": "1.0"}
    assert result["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert result["instructions"] == "Add."
    assert repr(outer) == "<Middleware of <Suite calculator 1.0, 0 tools>>"


def test_server_wrapper_wraps_a_server() -> None:
    """Any other object is rejected; the error names the wrapper."""
    with pytest.raises(ConfigurationError, match=r"^Middleware: inner must be a Server"):
        Middleware("suite")  # type: ignore[arg-type]
