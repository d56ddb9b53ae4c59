"""Extensions with FastMCP 4.2. It runs in an environment of its own, see `tests.e2e.pip`.

As a server over stdio: `serve`, and the folder of the skills. As a client: `load`, and a URL; it
prints what it has loaded as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import fastmcp
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.client import SkillsClientExtension
from fastmcp.skills.extension import SkillsExtension
from mcp.types import Request, RequestParams, Result


class LevelParams(RequestParams):
    part: str


class LevelResult(Result):
    inStock: int  # noqa: N815  # the name on the wire


class Level(Request[LevelParams, str]):
    method: str = "stock/level"


class Stock(ServerExtension):
    identifier = "com.example/stock"

    def settings(self) -> dict[str, Any]:
        return {"unit": "piece"}

    def methods(self) -> list[MethodBinding]:
        async def level(context: Any, params: LevelParams) -> LevelResult:
            return LevelResult(inStock=len(params.part), _meta={"com.example/by": "fastmcp"})

        return [MethodBinding("stock/level", LevelParams, level)]


def serve(folder: str) -> None:
    server: Any = fastmcp.FastMCP("peer")
    provider = SkillsDirectoryProvider(folder, experimental_skills=True)
    server.add_provider(provider)
    server.add_extension(SkillsExtension(providers=[provider]))
    server.add_extension(Stock())
    server.run(show_banner=False)


async def load(url: str) -> dict[str, Any]:
    async with fastmcp.Client(url, extensions=[SkillsClientExtension()]) as client:
        (skill,) = await client.list_skills()
        got: Any = await client.get_skill(skill.uri)
        (content,) = await client.read_resource(skill.uri)
        request: Any = Level(params=LevelParams(part="bolt"))
        level = await client.session.send_request(request, LevelResult)
    return {
        "version": fastmcp.__version__,
        "uri": str(skill.uri),
        "same": got == skill,
        "text": content.text,
        "in_stock": level.inStock,
        "by": (level.meta or {}).get("com.example/by"),
    }


if __name__ == "__main__":
    role, target = sys.argv[1:]
    if role == "serve":
        serve(target)
    else:
        sys.stdout.write(json.dumps(asyncio.run(load(target))))
