"""How a composite server passes extensions on: to the members that declare any.

Only the extensions of this process are known by their methods. A request of another method is sent
to the members in their order, until one of them has it; the pages of a list are those of all. A hub
sends each server only the methods of its extensions: it calls with credentials that its own clients
do not have.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.composite.pages import pages_of
from genmcp.core.request import Request, decode_params
from genmcp.errors import InvalidParams, McpError, MethodNotFound, MissingCapability
from genmcp.extensions.skill_entries import METHODS, SKILLS
from genmcp.protocol.capabilities import TASKS, ServerCapabilities
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.chain import METHOD_NAMES
from genmcp.protocol.value import Result
from genmcp.server import Server
from genmcp.wire.encoder import EncodedResult

# The first parts of the methods of the protocol: a revision may have more of them than genmcp.
_PROTOCOL: Final = frozenset(name.partition("/")[0] for name in METHOD_NAMES)


class RelayingMember(Protocol):
    """A member of a composite server."""

    @property
    def capabilities(self) -> ServerCapabilities:
        """Its capabilities, with the extensions that it declares."""

    async def relay(self, params: Mapping[str, Any], channel: Channel) -> Mapping[str, Any]:
        """Send it the request of *channel* with these *params*, and return the result as JSON."""


Members = Mapping[str, RelayingMember]


class AnyMethod(Collection[str]):
    """The methods of a composite server whose members have extensions: any text.

    Those that no member has are an error of `relayed`. Iterating yields the *known* ones.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def __contains__(self, method: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def extensions_of(members: Members) -> dict[str, Mapping[str, Any]]:
    """Return the extensions that *members* declare, apart from tasks.

    Settings that several declare are those of the first, and a switch is on if it is for one.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for member in members.values():
        for name, settings in (member.capabilities.extensions or {}).items():
            if name == TASKS or not isinstance(settings, Mapping):
                continue
            known = found.get(name, {})
            on = {key: True for key in known if settings.get(key) is True and known[key] is False}
            found[name] = {**settings, **known, **on}
    return found


async def relayed(members: Members, channel: Channel, *, page_size: int, timeout: float) -> Result:
    """Return the result of the request of *channel*, a method of an extension, from *members*.

    A page of a list has those of several members, as `pages_of` says.

    Raises:
        MethodNotFound: no member has the method.
        McpError: the error of the member that has it.
    """
    request = channel.request
    asked = {name: each for name, each in members.items() if _has_any(each)}
    params: dict[str, Any] = msgspec.json.decode(request.raw or b"{}", type=dict)
    params.pop("_meta", None)
    if request.method.endswith("/list"):
        return await _merged(asked, params, channel, page_size=page_size, timeout=timeout)
    failure: McpError | None = None
    for member in asked.values():
        try:
            return _encoded(await member.relay(params, channel))
        except McpError as error:
            # A member does not have what a URI names: another one may, as for resources.
            if error.code == InvalidParams.code and isinstance(params.get("uri"), str):
                failure = failure or error
            elif error.code != MethodNotFound.code:
                raise
    raise failure or MethodNotFound(request.method)


def is_of_any(method: str, extensions: Mapping[str, Any] | None) -> bool:
    """Return whether *method* belongs to one of *extensions*, which another process declares.

    `stock/level` and `com.example/stock/level` belong to `com.example/stock`: a declaration does
    not list the methods. A name of the protocol itself belongs to none, on whatever revision.
    """
    names = (extensions or {}).keys() - {TASKS}
    if any(method == each.name for each in METHODS):
        return SKILLS in names
    if method.partition("/")[0] in _PROTOCOL:
        return False
    return any(method.startswith((f"{name.rpartition('/')[2]}/", f"{name}/")) for name in names)


def _has_any(member: RelayingMember) -> bool:
    """Return whether *member* declares extensions besides tasks."""
    return bool((member.capabilities.extensions or {}).keys() - {TASKS})


async def _merged(
    members: Members, params: dict[str, Any], channel: Channel, *, page_size: int, timeout: float
) -> Result:
    """Return one page of the items of all *members*; of two with one URI, the first."""
    cursor = params.pop("cursor", None) or None
    if not isinstance(cursor, str | None):
        raise InvalidParams("Invalid cursor")

    async def fetch(name: str, own: str | None) -> tuple[Mapping[str, Any], int, str | None] | None:
        given = params if own is None else {**params, "cursor": own}
        try:
            page = await members[name].relay(given, channel)
        except McpError as error:
            if error.code == MethodNotFound.code:
                return None
            raise
        following = page.get("nextCursor")
        count = sum(len(each) for each in page.values() if isinstance(each, list))
        return page, count, following if isinstance(following, str) else None

    method = channel.request.method
    pages, following, failure = await pages_of(
        members, cursor, fetch, method=method, page_size=page_size, timeout=timeout
    )
    if not pages:
        raise failure or MethodNotFound(method)
    merged: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private"}
    seen: set[str] = set()
    for page in pages.values():
        for key, value in page.items():
            if key == "_meta":
                own = value if isinstance(value, Mapping) else {}
                merged[key] = {**own, **merged.get(key, {})}
                merged[key].pop(SERVER_INFO, None)  # a page of all has the name of no member
            elif isinstance(value, list):
                items = [each for each in value if _is_new(each, seen)]
                merged[key] = [*merged.get(key, ()), *items]
            elif key != "nextCursor":
                merged.setdefault(key, value)
    return _encoded(merged if following is None else {**merged, "nextCursor": following})


def _is_new(item: Any, seen: set[str]) -> bool:
    uri = item.get("uri") if isinstance(item, Mapping) else None
    if not isinstance(uri, str):
        return True
    new = uri not in seen
    seen.add(uri)
    return new


def _encoded(members: Mapping[str, Any]) -> Result:
    """Return a result with these *members*; the encoder adds those that a revision needs."""
    own = {key: each for key, each in members.items() if key != "resultType"}
    if not isinstance(own.get("_meta", {}), Mapping):
        del own["_meta"]
    return EncodedResult(kind=dict, body=msgspec.json.encode(own))


async def answer_of(
    server: Server, params: Mapping[str, Any], channel: Channel
) -> Mapping[str, Any]:
    """Return the result of a server of this process for the request of *channel*, as JSON.

    Raises:
        MethodNotFound: the server does not have the method.
        McpError: the error of the server.
    """
    request: Request = channel.request
    if request.method not in server.methods:
        raise MethodNotFound(request.method)
    method = server.added(request.method)
    if method.needs is not None and method.needs not in (
        request.client.capabilities.extensions or ()
    ):
        raise MissingCapability({"extensions": {method.needs: {}}})
    raw = msgspec.Raw(msgspec.json.encode(params))
    own = replace(request, params=decode_params(method.params_decoder, raw), raw=raw)
    found = await server.handle(own, channel)
    members: Mapping[str, Any] = msgspec.to_builtins(found)
    return members
