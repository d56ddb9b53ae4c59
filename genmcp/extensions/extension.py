"""`Extension`: an extension of the protocol (SEP-2133), which servers serve and clients declare.

class LevelParams(RequestParams):
    part: str

class LevelResult(Result):
    count: int

class Stock(Extension):
    name = "com.example/stock"
    methods = (Method("stock/level", LevelParams, LevelResult),)

    async def handle(self, request: Request, channel: Channel) -> Result:
        match request.params:
            case LevelParams(part=part):
                return LevelResult(count=await count_of(part))

A server has it by `Suite(extensions=[Stock()])`, a client declares it by
`Client(url, extensions=[Stock()])`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import ConfigurationError, ContractError, MissingCapability
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.methods import Method
from genmcp.protocol.revisions.chain import METHOD_NAMES
from genmcp.protocol.value import Result

# SEP-2133, "Definition": the names of `_meta` keys, with a prefix (2026-07-28, basic, "`_meta`").
_LABEL: Final = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = re.compile(
    rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII
)


class Extension:
    """An extension of the protocol: its name, its settings, and what it adds.

    Pass the attributes to the constructor, or set them in a subclass. A client needs only `name`,
    `settings` and `methods`; for a server, a subclass writes `handle` and adds components.

    Attributes:
        name: the identifier, a domain of the author in reverse and a name: `"com.example/stock"`.
            Required.
        settings: the settings that this side declares, a JSON object. Default: none.
        methods: the requests and notifications that it adds, with the types of their params and
            results: subclasses of `RequestParams` or `NotificationParams`, and of `Result`. A
            notification has no result; those of the server have `sender="server"`. Default: none.
        required: whether a client must have declared the extension to use its methods; others get
            the error -32021. Default False.
        tools, resources, prompts: the components that it adds to a suite. Default: none.
        several: whether a suite may have several extensions of this class. Default False.

    Raises:
        ConfigurationError: an attribute is invalid, or a method is one of the protocol.
    """

    name: str
    settings: Mapping[str, Any] = {}
    methods: Sequence[Method] = ()
    required: bool = False
    tools: Sequence[object] = ()
    resources: Sequence[object] = ()
    prompts: Sequence[object] = ()
    several: bool = False

    def __init__(
        self,
        name: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        methods: Sequence[Method] | None = None,
        required: bool | None = None,
    ) -> None:
        options = {"name": name, "settings": settings, "methods": methods, "required": required}
        for key, value in options.items():
            if value is not None:
                setattr(self, key, value)
        self._check()
        needs = self.name if self.required else None
        self.methods = tuple(replace(each, needs=needs) for each in self.methods)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _check(self) -> None:
        name = getattr(self, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f'an extension is named by a prefix and a name, such as "com.example/stock", '
                f"not {name!r}"
            )
        if name == TASKS:
            raise ConfigurationError(f"{name} is served for any tool that may become a task")
        try:
            encoded = msgspec.json.encode(self.settings)
        except (TypeError, ValueError):
            encoded = b""
        if not encoded.startswith(b"{"):
            raise ConfigurationError(f"{name}: settings must be an object, not {self.settings!r}")
        for each in self.methods:
            if not isinstance(each, Method) or each.name in METHOD_NAMES or each.routed:
                raise ConfigurationError(f"{name}: {each!r} is no method of an extension")

    async def handle(self, request: Request, channel: Channel) -> Result:
        """Return the result of *request*, whose method is one of `methods`.

        `request.params` are of the type that the method names. Write it for a server.

        Raises:
            McpError: the client gets this error as the response.
        """
        raise ContractError(f"{type(self).__name__} has methods, and no handle")

    def extend(self, request: Request, result: Result, channel: Channel) -> Result:
        """Return *result* with what the extension adds to it, such as members of its `_meta`.

        It is called for each result of a component, and for each page of a list. It must not
        block. Return *result* itself if nothing is added.
        """
        return result

    def declared_by(self, client: ClientInfo) -> Mapping[str, Any] | None:
        """Return the settings that *client* declared; None if it did not declare the extension.

        SEP-2133, "Server-Side Capability Checking": what needs the client's support is only offered
        to clients that have it.
        """
        found = (client.capabilities.extensions or {}).get(self.name)
        return found if isinstance(found, Mapping) else None

    def require(self, channel: Channel) -> Mapping[str, Any]:
        """Return the settings that the client of *channel* declared.

        Raises:
            MissingCapability: it has not declared the extension; the client gets the error -32021.
        """
        found = self.declared_by(channel.client)
        if found is None:
            raise MissingCapability({"extensions": {self.name: {}}})
        return found


def checked_extensions(owner: str, given: Iterable[object]) -> tuple[Extension, ...]:
    """Return *given*, of which no two may have the same name, or the same method.

    Raises:
        ConfigurationError: two clash, or one is not an Extension.
    """
    if isinstance(given, Extension) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{owner}: extensions must be a list of them, not {given!r}")
    extensions = []
    for each in given:
        if not isinstance(each, Extension):
            raise ConfigurationError(f"{owner}: {each!r} is not an Extension")
        extensions.append(each)
    kinds = {(each.name, type(each) if each.several else id(each)) for each in extensions}
    names = Counter(name for name, _ in kinds)
    names.update(method.name for each in extensions for method in each.methods)
    for name, count in names.items():
        if count > 1:
            raise ConfigurationError(f"{owner}: two extensions have {name}")
    return tuple(extensions)
