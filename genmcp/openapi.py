"""The operations of an HTTP API as tools, from its OpenAPI document.

    client = httpx.AsyncClient(base_url="https://api.example.com", auth=("ada", "secret"))
    suite = Suite("orders", tools=openapi_tools("openapi.json", client=client))

Nothing that the document refers to is fetched, and requests go only to the `base_url` of the
client: the servers that the document names are not used.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

import httpx
import msgspec
from starlette.authentication import AuthCredentials

from genmcp._schema.schema import Schema
from genmcp.channel import Channel
from genmcp.component import check_tool_name
from genmcp.content import json_of, result
from genmcp.core.request import ToolRequest
from genmcp.errors import ConfigurationError, ToolError
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.tools import Tool

# Subschemas of one input or output schema, and its levels. References are replaced by their targets
# from the root down: a schema that would have more keeps its upper levels.
_MAX_SUBSCHEMAS: Final = 500
_MAX_DEPTH: Final = 32
# Characters of a description: a hostile document may refer to a long one 10,000 times.
_MAX_TEXT: Final = 4_096
# Bytes of a response, decompressed, and characters of the text of an error.
_MAX_RESPONSE: Final = 4 * 1024 * 1024
_MAX_ERROR: Final = 16 * 1024
_MAX_NAME: Final = 64  # clients reject longer names of tools and arguments: `genmcp lint`

_METHODS: Final = ("get", "head", "post", "put", "patch", "delete", "options", "trace")
_ANNOTATIONS: Final = {
    **dict.fromkeys(("get", "head", "options"), ToolAnnotations(read_only_hint=True)),
    "put": ToolAnnotations(idempotent_hint=True),
    "delete": ToolAnnotations(destructive_hint=True, idempotent_hint=True),
}
# The styles of parameters by their place, the default first; "member" and "body" are of a body.
_STYLES: Final = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
    "member": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "body": ("json",),
}
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}
# By place, the attribute of a client with what it sends with each request.
_SENT: Final = {"header": "headers", "query": "params", "cookie": "cookies"}
# Headers that are set by the client or by proxies, or make another request of it. OpenAPI,
# "Parameter Object", ignores the first three. Many servers read "_" as "-".
_RESERVED: Final = re.compile(
    r"(?i)accept|content[-_]type|authorization|cookie|host|content[-_]length|transfer[-_]encoding"
    r"|connection|upgrade|expect|te|trailer|(x[-_])?forwarded([-_].*)?|(proxy|sec)[-_].*"
    r"|x[-_](real[-_]ip|original[-_]url|rewrite[-_]url|(http[-_])?method([-_]override)?)"
)
# Segments without "." and "..", a query or a fragment.
_PATH: Final = re.compile(r"(?:/(?!/|(?:\.|%2e){1,2}(?:/|$))[^/?#\\\s]*)+", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_HEADER: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_FORM: Final = "application/x-www-form-urlencoded"
_SCOPE: Final = "genmcp.scope"

_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_SCALARS: Final = (str, int, float, bool, type(None))
_COUNTS: Final = tuple(
    f"{end}{each}" for end in ("min", "max") for each in ("Length", "Items", "Properties")
)
_POSITIVE: Final = frozenset({"multipleOf", *_COUNTS})  # others are invalid, or without effect
# The keywords that are copied, and the types of their values. To leave one out is to accept more
# values, which the API checks anyway.
_COPIED: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("description", "format", "pattern"), (str,)),
    **dict.fromkeys(("default", "const"), _SCALARS[:-1]),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(("uniqueItems", "deprecated"), (bool,)),
}
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "not")
_COMPLEX: Final = frozenset({"enum", "const", *_LISTS, "not", "patternProperties"})
# The keywords of output schemas: what clients and models read, but not its constraints. Responses
# break those: a fifth of the examples in GitHub's document do not fit the schemas beside them.
_OUTPUT: Final = ("type", "nullable", "description", "properties", "items", "allOf")
_Object = dict[str, Any]
_Pairs = list[tuple[str, str]]
_Parameters = list[tuple[str, str, _Object]]  # place, name, and the object in the document
# Schemas of the document, each with the schema that is made of it.
_Below = list[tuple[Any, dict[str, Any]]]

_decode: Final = msgspec.json.Decoder().decode


class UnusableOperation(Exception):
    """An operation that cannot be a tool. The message is the reason."""


class RequestPart(msgspec.Struct, frozen=True):
    """A part of a request, whose value is an argument of the tool.

    Attributes:
        argument: the name of the argument.
        name: the name of the parameter, or of the member of a body.
        place: "path", "query", "header" or "cookie"; "member" of a body, or the whole "body".
        schema, required: those of the argument.
        style, explode: how an array or object is written.
        multi_segment: whether a value in the path may have slashes.
    """

    argument: str
    name: str
    place: str
    schema: Any
    required: bool
    style: str
    explode: bool
    multi_segment: bool

    def pairs(self, value: Any) -> _Pairs:
        """Return *value* as names and texts: OpenAPI, "Style Examples"."""
        if self.style == "json":
            return [(self.name, json_of(value).decode())]
        if isinstance(value, list):
            items = [(self.name, _text(each)) for each in value]
        elif isinstance(value, dict) and (self.place != "member" or self.style == "deepObject"):
            form = f"{self.name}[%s]" if self.style == "deepObject" else "%s"
            items = [(form % key, _text(each)) for key, each in value.items()]
        else:
            return [(self.name, _text(value))]
        if self.style == "deepObject" or (self.explode and self.style != "simple"):
            return items
        separator = _SEPARATORS.get(self.style, ",")
        link = "=" if self.explode else separator
        texts = (link.join(each[isinstance(value, list) :]) for each in items)
        return [(self.name, separator.join(texts))]

    def segment(self, value: Any) -> str:
        """Return *value* for the path, percent-encoded.

        Raises:
            ToolError: the path would be another than that of the operation. Many servers decode
                `%2F` before they look for the operation.
        """
        ((_, text),) = self.pairs(value)
        for each in text.split("/") if self.multi_segment else [text]:
            if each in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", each):
                raise ToolError(
                    f"Argument {self.argument!r} must not change the path: no slash, backslash or "
                    f"control character, and neither empty nor '.' nor '..', but got {text[:100]!r}"
                )
        return quote(text, safe="")


def _sent_by(client: httpx.AsyncClient, place: str) -> set[str]:
    """Return the names, in lower case, of what *client* sends in a place with each request."""
    names = [*getattr(client, _SENT.get(place, ""), ())]
    if place == "cookie":
        names += re.findall(r"(?:^|;)\s*([^=;\s]+)\s*=", client.headers.get("Cookie", ""))
    return {each.lower() for each in names}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_of(value).decode()


class OperationRequest(msgspec.Struct, frozen=True):
    """How a request is made of the arguments of a tool.

    media_type: that of the body, or None. empty: the body without arguments, None if there is none.
    """

    method: str
    path: str
    parts: Sequence[RequestPart]
    media_type: str | None
    empty: bytes | None

    def build(self, client: httpx.AsyncClient, given: _Object) -> httpx.Request:
        """Return the request with the arguments *given*.

        Raises:
            ToolError: an argument cannot be sent.
        """
        path, content, members = self.path, self.empty, {}
        pairs: dict[str, list[Any]] = {"query": [], "cookie": [], "member": []}
        headers: dict[str, str] = {}
        for part in self.parts:
            value = given.get(part.argument)
            if part.argument in given and part.place == "body":
                content = json_of(value)
            elif part.argument in given and part.place == "member" and self.media_type != _FORM:
                members[part.name] = value
            elif value is not None and part.place == "path":
                path = path.replace(f"{{{part.name}}}", part.segment(value))
            elif value is not None and part.place == "header":
                ((_, text),) = part.pairs(value)
                if not _HEADER.fullmatch(text):
                    raise ToolError(f"Argument {part.argument!r} has characters of no header.")
                headers[part.name] = text
            elif value is not None:
                pairs[part.place] += self._pairs(part, value, client)
        if missing := _PLACEHOLDER.search(path):
            raise ToolError(f"Argument {missing[1]!r} must not be null.")
        if members:
            content = json_of(members)
        if pairs["member"]:
            content = urlencode(pairs["member"]).encode()
        if content is not None:
            headers["Content-Type"] = self.media_type or "application/json"
        request = client.build_request(
            self.method, path, params=pairs["query"] or None, headers=headers, content=content
        )
        if pairs["cookie"]:
            cookies = [f"{quote(name)}={quote(value)}" for name, value in pairs["cookie"]]
            own = request.headers.get_list("Cookie")
            request.headers["Cookie"] = "; ".join(own + cookies)
        return request

    def _pairs(self, part: RequestPart, value: Any, client: httpx.AsyncClient) -> _Pairs:
        """Return *value* as names and texts.

        Raises:
            ToolError: a member of an object has the name of another parameter.
        """
        pairs = part.pairs(value)
        others = {each.name.lower() for each in self.parts if each.place == part.place}
        others = (others | _sent_by(client, part.place)) - {part.name.lower()}
        for name, _ in pairs:
            read = {name.lower(), name.lower().partition("[")[0]}  # many servers read `a[]` as `a`
            if name != part.name and not others.isdisjoint(read):
                raise ToolError(f"Argument {part.argument!r} cannot set parameter {name!r:.100}.")
        return pairs


def in_process_client(app: Any) -> httpx.AsyncClient:
    """Return a client of an ASGI *app* of this process, which acts for the caller of each tool.

    The app gets the credentials of the caller, which stay in this process, as if the caller had
    sent the request itself, and decides about it. A response that is refused ends the app.
    """

    async def act_for_caller(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        channel = _channel.get()
        asked = getattr(channel.context.caller, "scope", {})  # none over stdio
        passed = {name: each for name, each in asked.get("headers", ()) if name in _PASSED_ON}
        headers = {**dict(scope["headers"]), **passed}
        # Without an address: an app may trust clients on its own machine, which a caller is not.
        added = {"client": asked.get("client"), "state": dict(asked.get("state", {}))}
        if (access := channel.access) is not None:
            added["user"] = access
            added["auth"] = AuthCredentials(["authenticated", *sorted(access.scopes)])
        size, refused = 0, ""

        async def send_bounded(message: MutableMapping[str, Any]) -> None:
            nonlocal size, refused
            size += len(message.get("body", b""))
            refused = refused or _refusal(httpx.Headers(message.get("headers")), size)
            if refused:
                raise OSError(refused)  # ASGI: the connection is closed
            await send(message)

        try:
            await app({**scope, **added, "headers": [*headers.items()]}, receive, send_bounded)
        finally:
            if refused:  # whatever the app made of the exception
                raise ToolError(refused)

    transport = httpx.ASGITransport(act_for_caller)  # collects a whole response
    headers = {"Accept-Encoding": "identity"}  # compressed, it could be larger than counted
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


_PASSED_ON: Final = (b"authorization", b"host")
_channel: Final = ContextVar[Channel]("channel")
# No domain may set cookies in a client: those of one caller must not reach another.
_SETS_NO_COOKIES: Final = DefaultCookiePolicy(allowed_domains=[])


class OperationTool(Tool):
    """An operation of an HTTP API as a tool. Made by `openapi_tools`.

    Attributes:
        operation: its `operationId`, or its method and path.
    """

    max_hold = None  # it cannot wait, which need not be found out for each of 1,000 tools

    def __init__(
        self, operation: str, request: OperationRequest, client: httpx.AsyncClient
    ) -> None:
        self.operation = self.__name__ = operation  # the latter names it in errors
        self._request = request
        self._client = client

    @cached_property
    def _output(self) -> Schema | None:
        given = self.output_schema
        return Schema(given, formats=False) if isinstance(given, Mapping) else None

    async def call(self, request: ToolRequest, channel: Channel) -> CallToolResult:
        """Send the request to the API, and return its response.

        Raises:
            ToolError: an argument cannot be sent; the API cannot be reached, or responds with a
                status other than 2xx.
        """
        # Not `request.arguments`, in which the defaults of the schema are filled in: a PATCH would
        # change members that the caller has not named.
        raw: Any = request.raw_arguments or b"{}"
        try:
            sent = self._request.build(self._client, _decode(raw))
            _channel.set(channel)
            self._client.cookies.jar.set_policy(_SETS_NO_COOKIES)  # it may be a new jar
            response = await self._client.send(sent, stream=True)
            async with aclosing(response):
                body = await _read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = type(error).__name__  # the text of the error may contain the URL of the API
            raise ToolError(f"{self.operation}: the request failed: {reason}") from error
        return self._result(response, body)

    def _result(self, response: httpx.Response, body: bytes) -> CallToolResult:
        status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        if not response.is_success:
            # A redirect may lead to a host that is not public, as its page says, too.
            text = "" if response.is_redirect else body.decode(errors="replace")[:_MAX_ERROR]
            raise ToolError(f"{self.operation}: {status}\n{text}".rstrip())
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{self.operation}: {status}, but its content is no text") from None
        value: Any = None
        if _is_json(response.headers.get("Content-Type", "")):
            with suppress(msgspec.DecodeError, RecursionError):
                value = _decode(body)
        if self._output is not None:
            faults = self._output.check(value) if value is not None else ["no JSON object"]
            if faults:
                words = f"{status}, but not as the API documents: {'; '.join(faults)}"
                return result(words, text, error=True)
        if isinstance(value, dict):
            return result(value)
        return result(text or f"{status} {response.headers.get('Location', '')}".rstrip())


def _is_json(media_type: str) -> bool:
    name = media_type.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


def _refusal(headers: httpx.Headers, size: int) -> str:
    """Return why a response with these *headers* and *size* so far is not read; "" if it is."""
    if headers.get("Content-Type", "").lower().startswith("text/event-stream"):
        return "The response is a stream of events, which may never end."
    if size > _MAX_RESPONSE:
        return f"The response has more than {_MAX_RESPONSE} bytes. Ask for less, such as one page."
    return ""


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    if refused := _refusal(response.headers, 0):
        raise ToolError(refused)
    async for piece in response.aiter_bytes():
        body += piece
        if refused := _refusal(response.headers, len(body)):
            raise ToolError(refused)
    return bytes(body)


@lru_cache(maxsize=1024)
def _is_linear(pattern: str) -> bool:
    """Return whether *pattern* can be matched in linear time, as the checker requires."""
    try:
        Schema({"pattern": pattern})
    except ConfigurationError:
        return False
    return True


def _types_of(node: _Object) -> list[str]:
    """Return the types of *node*; none if it has any type."""
    given = node.get("type")
    types = [each for each in _TYPES if each in (given if isinstance(given, list) else [given])]
    if types and node.get("nullable") is True:  # OpenAPI 3.0 has no type "null"
        types = [*dict.fromkeys((*types, "null"))]
    return types


def _alternatives(node: _Object) -> list[_Object]:
    """Return the schemas of one type each that *node* stands for; none if it can stay as it is.

    Models reject a type that is a list with an array or object, and null as a choice.
    """
    types = _types_of(node) or (["any", "null"] if node.get("nullable") is True else [])
    simple = _COMPLEX.isdisjoint(node) and not {"array", "object"} & {*types}
    if len(types) < 2 or simple:
        return []
    bare = {key: each for key, each in node.items() if key not in ("description", "nullable")}
    if isinstance(bare.get("enum"), list):
        bare["enum"] = [each for each in bare["enum"] if each is not None]
    return [{"type": each} if each == "null" else {**bare, "type": each} for each in types]


class OperationReader:
    """Makes tools of the operations of a document.

    Args:
        document: the document as it was decoded from JSON.
        client: sends the requests of the tools.

    Attributes:
        skipped: the operations, and paths, that cannot be tools, each with the reason.
    """

    def __init__(self, document: _Object, client: httpx.AsyncClient) -> None:
        self._document = document
        self._client = client
        self._targets: dict[str, Any] = {}
        self.skipped: dict[str, str] = {}

    def resolve(self, node: Any) -> tuple[Any, frozenset[str]]:
        """Return the value that *node* refers to, and the references on the way to it.

        Members beside a `$ref` replace those of its target.

        Raises:
            UnusableOperation: a reference leads nowhere, to itself or out of the document.
        """
        passed: frozenset[str] = frozenset()
        while isinstance(node, dict) and "$ref" in node:
            reference = str(node["$ref"])
            if reference in passed:
                raise UnusableOperation(f"$ref {reference[:200]!r} refers to itself")
            passed |= {reference}
            if reference not in self._targets:
                self._targets[reference] = self._at(reference)
            target = self._targets[reference]
            if len(node) > 1 and isinstance(target, dict):
                beside = {key: each for key, each in node.items() if key != "$ref"}
                target = {**target, **beside}
            node = target
        return node, passed

    def _object(self, node: Any) -> _Object:
        """Return the object that *node* refers to; an empty one in place of another value."""
        found, _ = self.resolve(node)
        return found if isinstance(found, dict) else {}

    def _at(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise UnusableOperation(
                f"$ref {reference[:200]!r} is outside of the document, and nothing is fetched: "
                f"bundle the document into one file"
            )
        found: Any = self._document
        try:
            for step in unquote(reference).split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (LookupError, ValueError, TypeError):
            raise UnusableOperation(f"$ref {reference[:200]!r} leads nowhere") from None
        return found

    def schema(self, given: Any, *, hidden: str) -> dict[str, Any]:
        """Return the schema *given* in JSON Schema 2020-12 and without references.

        A schema within itself, and the levels for which there is no room, accept any value.
        Properties that are *hidden* are left out.

        Raises:
            UnusableOperation: a reference cannot be resolved.
        """
        root: dict[str, Any] = {}
        # Breadth first, so that a large schema keeps its upper levels.
        pending = deque([(given, root, frozenset[str](), 0)])
        room = _MAX_SUBSCHEMAS
        while pending:
            node, made, above, depth = pending.popleft()
            node, passed = self.resolve(node)
            if not isinstance(node, dict):
                made |= {"not": {}} if node is False else {}
                continue
            if hidden == "writeOnly":
                node = {key: node[key] for key in _OUTPUT if key in node}
            counted = [node.get(each) for each in ("properties", "enum", *_LISTS)]
            size = sum(len(each) for each in counted if isinstance(each, dict | list))
            below: _Below = []
            if size > room or depth > _MAX_DEPTH or not passed.isdisjoint(above):
                types = _types_of(node)
                kind = types[0] if len(types) == 1 else None
                self._fill({"type": kind, "description": node.get("description")}, made, hidden)
            elif alternatives := _alternatives(node):
                self._fill({"description": node.get("description")}, made, hidden)
                made["anyOf"] = [{} for _ in alternatives]
                below = [*zip(alternatives, made["anyOf"], strict=True)]
            else:
                below = self._fill(node, made, hidden)
            room -= size + len(below)
            pending += [(each, into, above | passed, depth + 1) for each, into in below]
        return root

    def _fill(self, node: _Object, made: dict[str, Any], hidden: str) -> _Below:
        """Copy the keywords of *node* to *made*; return the schemas below, yet to be filled."""
        below: _Below = []
        absent: set[Any] = set()

        def child(schema: Any) -> dict[str, Any]:
            below.append((schema, {}))
            return below[-1][1]

        if types := _types_of(node):
            made["type"] = types[0] if len(types) == 1 else types
            made |= {"items": {}} if types == ["array"] else {}
        for keyword, value in node.items():
            if type(value) in _COPIED.get(keyword, ()):
                is_invalid = keyword in _POSITIVE and value <= 0
                if not is_invalid and (keyword != "pattern" or _is_linear(value)):
                    made[keyword] = value[:_MAX_TEXT] if keyword == "description" else value
            elif keyword == "properties" and isinstance(value, dict):
                absent = {
                    name for name, each in value.items() if self._object(each).get(hidden) is True
                }
                made[keyword] = {
                    str(name): child(each) for name, each in value.items() if name not in absent
                }
            elif keyword in _LISTS and isinstance(value, list) and value:
                made[keyword] = [child(each) for each in value]
            elif keyword in _SINGLE and isinstance(value, dict | bool):
                made[keyword] = child(value) if isinstance(value, dict) else value
            elif keyword == "enum" and isinstance(value, list) and value:
                made |= {"enum": value} if {*map(type, value)} <= {*_SCALARS} else {}
        if names := _listed(node.get("required")):
            names = [each for each in names if type(each) is str and each not in absent]
            made["required"] = [*dict.fromkeys(names)]
        for bound in ("Minimum", "Maximum"):
            # OpenAPI 3.0: a boolean beside `minimum`.
            if node.get(f"exclusive{bound}") is True and bound.lower() in made:
                made[f"exclusive{bound}"] = made.pop(bound.lower())
        if "patternProperties" in node:  # not supported: others must be accepted then
            made.pop("additionalProperties", None)
        return below

    def operations(self) -> Iterator[tuple[str, str, _Object, _Object]]:
        """Yield each operation: its method and its path, the path item, and the operation."""
        paths = self._document.get("paths")
        for path, each in paths.items() if isinstance(paths, dict) else ():
            try:
                item = self._object(each)
            except UnusableOperation as error:
                self.skipped[str(path)] = str(error)
                continue
            for method in _METHODS:
                if isinstance(given := item.get(method), dict):
                    yield method, str(path), item, given

    def tool(self, id: str, method: str, path: str, item: _Object, given: _Object) -> OperationTool:
        """Return the tool of the operation *given*, a member of the path *item*.

        Raises:
            UnusableOperation: it cannot be a tool.
        """
        if method == "trace":
            raise UnusableOperation("a response to TRACE shows the credentials of the request")
        if not _PATH.fullmatch(path):
            raise UnusableOperation("its path has '.', '..', '//', a query or a fragment")
        taken = Counter[str]()
        found = self._parameters(path, item, given)
        media_type, empty, members = self._body(self._object(given.get("requestBody")))
        parts = [self._part(*each, taken) for each in found + members]
        request = OperationRequest(method.upper(), path, parts, media_type, empty)
        tool = OperationTool(id, request, self._client)
        tool.title = _text_of(given.get("summary"))
        described = _text_of(given.get("description")) or tool.title
        tool.description = described or f"{method.upper()} {path}"
        tool.annotations = _ANNOTATIONS.get(method)
        arguments = {
            "type": "object",
            "properties": {part.argument: part.schema for part in parts},
            "required": [part.argument for part in parts if part.required],
            "additionalProperties": False,
        }
        tool.input_schema = self.schema(arguments, hidden="readOnly")
        tool.output_schema = self._output(given.get("responses"))
        return tool

    def _parameters(self, path: str, item: _Object, given: _Object) -> _Parameters:
        """Return the parameters of an operation, those of the path first."""
        # A path may name parameters that are not described.
        found: dict[tuple[str, str], _Object] = {
            ("path", name): {"schema": {"type": "string"}} for name in _PLACEHOLDER.findall(path)
        }
        in_path = {*found}
        for each in (*_listed(item.get("parameters")), *_listed(given.get("parameters"))):
            parameter = self._object(each)
            name, place = str(parameter.get("name")), str(parameter.get("in"))
            if place not in _STYLES or (place == "header" and not _TOKEN.fullmatch(name)):
                raise UnusableOperation(f"its parameter {name[:100]!r} is in {place[:100]!r}")
            is_ignored = place == "header" and _RESERVED.fullmatch(name) is not None
            # The user's client may send an API key that the document lists as a parameter.
            is_ignored |= name.lower() in _sent_by(self._client, place)
            if not is_ignored and (place != "path" or (place, name) in in_path):
                found[place, name] = parameter
        return [(*key, found[key]) for place in _STYLES for key in found if key[0] == place]

    def _part(self, place: str, name: str, given: _Object, taken: Counter[str]) -> RequestPart:
        style = given.get("style", _STYLES[place][0])
        if style not in _STYLES[place]:
            raise UnusableOperation(f"its parameter {name[:100]!r} has the style {style!r:.100}")
        schema = given.get("schema")
        if content := self._object(given.get("content")):
            schema, style = self._object(next(iter(content.values()))).get("schema"), "json"
        # Members beside a `$ref` replace those of its target.
        described: _Object = dict(schema) if isinstance(schema, dict) else {}
        described |= {key: given[key] for key in ("description", "deprecated") if key in given}
        if place != "member":  # parameters may share a schema with members that are read-only
            described["readOnly"] = False
        return RequestPart(
            argument=_unique(name, taken, "body" if place == "member" else place),
            name=name,
            place=place,
            schema=described,
            required=place == "path" or given.get("required") is True,
            style=style,
            explode=given.get("explode", style == "form") is True,
            multi_segment=any(each.get("x-multi-segment") is True for each in (given, described)),
        )

    def _body(self, given: _Object) -> tuple[str | None, bytes | None, _Parameters]:
        """Return the media type of a body, what is sent without arguments, and its parts.

        The parts are given as if they were parameters: the members of an object, which become
        arguments beside the parameters. Any other value is the argument `body`.
        """
        content = self._object(given.get("content"))
        types = {str(key).partition(";")[0].strip().lower(): each for key, each in content.items()}
        usable = [each for each in types if _is_json(each) or each == _FORM]
        if not types:
            return None, None, []
        if not usable:
            raise UnusableOperation(f"its body is {', '.join(types)[:200]}: no JSON and no form")
        media, required = self._object(types[usable[0]]), given.get("required") is True
        root, encoding = self._object(media.get("schema")), self._object(media.get("encoding"))
        properties: Any = root.get("properties")
        is_open = root.get("additionalProperties", False) is not False
        has_members = isinstance(properties, dict) and properties and not is_open
        if has_members and _COMPLEX.isdisjoint(root) and not _alternatives(root):
            needed = _listed(root.get("required"))
            # Many documents forget to say that a body is required: `{}` is accepted, too, then.
            empty = None if needed and not required else b"" if usable[0] == _FORM else b"{}"
            members = []
            for name, schema in properties.items():
                style = self._object(encoding.get(name)).get("style", "form")
                member = {"schema": schema, "required": required and name in needed, "style": style}
                members.append(("member", str(name), member))
            return usable[0], empty, members
        if usable[0] == _FORM:
            raise UnusableOperation("its form is not an object with properties of its own")
        whole = {**given, "schema": media.get("schema"), "required": required, "content": None}
        return usable[0], None, [("body", "body", whole)]

    def _output(self, responses: Any) -> dict[str, Any] | None:
        """Return the schema of the only successful response, if that is a JSON object."""
        try:
            given = self._object(responses)
            found = [each for status, each in given.items() if str(status).startswith("2")]
            content = self._object(self._object(found[0]).get("content")) if found else {}
            if len(found) != 1 or len(content) != 1 or not _is_json(str(next(iter(content)))):
                return None
            schema = self._object(next(iter(content.values()))).get("schema")
            if self._object(schema).get("type") != "object":
                return None
            made = self.schema(schema, hidden="writeOnly")
        except UnusableOperation:
            return None  # the operation can be called all the same
        return made if made.get("type") == "object" else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text_of(value: Any) -> str | None:
    return (value.strip()[:_MAX_TEXT] or None) if isinstance(value, str) else None


def _unique(text: str, taken: Counter[str], place: str = "") -> str:
    """Return *text* as a name that clients accept and that is not *taken*; add it to those.

    A name that is taken gets its *place*, or a number.
    """
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", text).strip("_")[:_MAX_NAME] or "unnamed"
    if name in taken and place:
        name = f"{name[: _MAX_NAME - 8]}_{place}"
    found = name
    while found in taken:
        taken[name] += 1
        found = f"{name[: _MAX_NAME - 8]}_{taken[name]}"
    taken[found] += 1
    return found


def _load(source: Any) -> _Object:
    try:
        document = source if isinstance(source, Mapping) else _decode(Path(source).read_bytes())
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"openapi_tools: {source!r:.200} is no path of a JSON file (of YAML, pass the decoded "
            f"document): {error}"
        ) from error
    version = document.get("openapi") if isinstance(document, Mapping) else None
    if not str(version).startswith("3."):
        raise ConfigurationError(
            f"openapi_tools: {version!r:.50} is not a version of OpenAPI 3.0 or later"
        )
    return dict(document)


class OperationTools(list[OperationTool]):
    """The tools of an API, in the order of its document. Pass it as `Suite(tools=)`.

    Attributes:
        skipped: the operations that are no tools, each with the reason.
    """

    skipped: dict[str, str]


def openapi_tools(
    source: Any,
    *,
    client: httpx.AsyncClient | None = None,
    only: Collection[str] = ("*",),
    rename: Callable[[str], str | None] | None = None,
) -> OperationTools:
    """Return a tool for each operation of an HTTP API, for `Suite(tools=)`.

    Args:
        source: its OpenAPI document: the path of a JSON file, or the decoded document; or a FastAPI
            app with all its routes, which is then called in this process with the access of the
            caller.
        client: sends the requests, to its `base_url`, and authenticates them. It serves all
            callers, so that it keeps no cookies of responses from then on. Not needed for an app.
            It stays open.
        only: the operations that become tools, each by its `operationId`, or by its method and path
            (`"GET /users/{id}"`); `*` stands for any text. Default: all.
        rename: returns the name of the tool for an `operationId`; None for the default, which is
            that id with `_` in place of characters that clients reject.

    Raises:
        ConfigurationError: the document cannot be read, an option is wrong, or `only` names an
            operation that does not exist.
    """
    app = source if callable(source) and hasattr(source, "openapi") else None
    document = _load(source if app is None else app.openapi())
    if app is not None and client is None:
        client = in_process_client(app)
    if not isinstance(client, httpx.AsyncClient) or not client.base_url.host:
        raise ConfigurationError(
            f"openapi_tools: client must be an httpx.AsyncClient with a base_url; the servers of "
            f"the document are not used by themselves: {document.get('servers')!r:.200}"
        )
    reader = OperationReader(document, client)
    tools = OperationTools()
    tools.skipped = reader.skipped
    unused, ids, taken = {*only}, set[str](), Counter[str]()
    for method, path, item, given in reader.operations():
        place = f"{method.upper()} {path}"
        id = str(given.get("operationId") or place)
        id = place if id in ids else id
        ids.add(id)
        matching = {each for each in only if fnmatchcase(id, each) or fnmatchcase(place, each)}
        unused -= matching
        if not matching:
            continue
        try:
            tool = reader.tool(id, method, path, item, given)
        except UnusableOperation as error:
            reader.skipped[id] = str(error)
            continue
        name = rename(id) if rename is not None else None
        if name is not None:
            check_tool_name(f"openapi_tools: the tool of {id!r}", name)
        tool.name = name or _unique(id if id != place else f"{method}{path}", taken)
        tools.append(tool)
    if unused - {"*"}:
        raise ConfigurationError(f"openapi_tools: only: no operation is {min(unused)!r}")
    return tools
