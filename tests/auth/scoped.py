"""A server with components that need scopes, and a record of the hooks that ran."""

from collections.abc import Mapping
from typing import Any

from genmcp import (
    Access,
    Channel,
    Completion,
    Endpoint,
    InsufficientScope,
    Mux,
    Prompt,
    PromptRequest,
    Provider,
    Registry,
    Resource,
    Server,
    Suite,
    Tool,
    ToolRequest,
    tool,
)
from genmcp.prompts import PromptRepo
from genmcp.protocol import PromptArgument, PromptDefinition, ResourceDefinition
from genmcp.resources import ResourceRepo

WRITE = ["parts:write"]
RAN: list[str] = []
OPEN: list[Mux] = []


def granted(*scopes: str, subject: str = "ann", client_id: str = "agent") -> Access:
    """Return the access of a token with *scopes*."""
    return Access(
        issuer="https://login.example.com",
        subject=subject,
        client_id=client_id,
        scopes=frozenset(scopes),
    )


class Reorder(Tool):
    """Orders more of a part."""

    name = "reorder"
    scopes = WRITE
    input_schema: Any = {"type": "object", "properties": {"count": {"type": "integer"}}}

    def validate(self, request: ToolRequest, channel: Channel) -> ToolRequest:
        RAN.append("validate")
        return request

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        RAN.append("call")
        if request.arguments.get("count", 0) > 100:
            access = channel.access
            if access is None or access.missing(["parts:bulk"]):
                raise InsufficientScope("parts:bulk")
        return "ordered"


@tool
async def look() -> str:
    """Needs no scope."""
    return "seen"


@tool(scopes=["stock:read", "stock:audit"])
def audit() -> str:
    """Needs two scopes, and runs in a thread."""
    RAN.append("audit")
    return "audited"


class Quote(Prompt):
    """A prompt."""

    name = "quote"
    scopes = ("parts:write",)
    arguments: Any = (PromptArgument("part"),)
    completions: Any = {"part": ["bolt"]}

    async def get(self, request: PromptRequest, channel: Channel) -> str:
        RAN.append("quote")
        return "How much?"


class Letters(PromptRepo):
    """Prompts with one prefix."""

    prefix = "letter/"
    scopes = WRITE

    async def list(self, cursor: Any, channel: Channel) -> Any:
        return [PromptDefinition("letter/a")]

    async def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        RAN.append(name)
        return name

    async def complete(
        self, name: str, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> Completion:
        RAN.append("complete")
        return Completion(["a"])


class Parts(ResourceRepo):
    """Resources with one template."""

    name = "part"
    template = "part://{id}"
    scopes = WRITE

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition("part://bolt", "bolt")]

    async def read(self, key: dict[str, str], channel: Channel, /) -> str:
        RAN.append("part")
        return key["id"]

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel, /
    ) -> Any:
        RAN.append("complete")
        return ["bolt"]


def price_list() -> str:
    """Lists the prices."""
    RAN.append("prices")
    return "1"


TOOLS: list[Any] = [Reorder, look, audit]
PROMPTS: list[Any] = [Quote, Letters]
RESOURCES: list[Any] = [Parts, Resource("price://list", price_list, name="prices", scopes=WRITE)]


def suite(*tools: Any, **more: Any) -> Suite:
    """Return the server, with further components."""
    components: Any = {"tools": [*TOOLS, *tools], "prompts": PROMPTS, "resources": RESOURCES}
    return Suite(name="test", version="1", **components, **more)


class Given(Provider):
    """Has the components of the server, and further tools, for every client."""

    def __init__(self, *tools: Any) -> None:
        self._tools = [*TOOLS, *tools]

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return self._tools

    def prompts(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return PROMPTS

    def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return RESOURCES


def endpoint(*tools: Any, **options: Any) -> Endpoint:
    """Return an endpoint in a host application that authenticates its clients."""
    return _serving(suite(*tools), **options)


def provided(*tools: Any) -> Endpoint:
    """Return an endpoint of the same components, which a provider has."""
    return _serving(Suite(name="test", version="1", providers=[Given(*tools)]))


def registered(*tools: Any) -> Endpoint:
    """Return an endpoint of a registry with that server, whose tools begin with `test/`."""
    return _serving(Registry([Suite(name="test", version="1", providers=[Given(*tools)])]).server())


def _serving(server: Server, **options: Any) -> Endpoint:
    OPEN.append(Mux(server))
    return Endpoint(OPEN[-1], **options)


async def close() -> None:
    """Close the muxes of all endpoints, and forget the hooks that ran."""
    RAN.clear()
    while OPEN:
        await OPEN.pop().aclose()
