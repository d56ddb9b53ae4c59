"""The tools of an OpenAPI document."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from genmcp.component import check_tool_name
from genmcp.errors import ConfigurationError
from genmcp.openapi.document import (
    COMPLEX,
    MAX_TEXT,
    Object,
    OpenApiDocument,
    UnusableOperation,
    alternatives,
    listed,
)
from genmcp.openapi.request import FORM, PLACEHOLDER, OperationRequest, RequestPart, sent_by
from genmcp.openapi.tool import OperationTool, in_process_client, is_json
from genmcp.protocol.tools import ToolAnnotations

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
# Headers that are set by the client or by proxies, or make another request of it. OpenAPI,
# "Parameter Object", ignores the first three. Many servers read "_" as "-".
_RESERVED: Final = re.compile(
    r"(?i)accept|content[-_]type|authorization|cookie|host|content[-_]length|transfer[-_]encoding"
    r"|connection|upgrade|expect|te|trailer|(x[-_])?forwarded([-_].*)?|(proxy|sec)[-_].*"
    r"|x[-_](real[-_]ip|original[-_]url|rewrite[-_]url|(http[-_])?method([-_]override)?)"
)
# Segments without "." and "..", a query or a fragment.
_PATH: Final = re.compile(r"(?:/(?!/|(?:\.|%2e){1,2}(?:/|$))[^/?#\\\s]*)+", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2

_Parameters = list[tuple[str, str, Object]]  # place, name, and the object in the document


class OperationReader:
    """Makes tools of the operations of a document.

    Args:
        document: the document as it was decoded from JSON.
        client: sends the requests of the tools.

    Attributes:
        skipped: the operations, and paths, that cannot be tools, each with the reason.
    """

    def __init__(self, document: Object, client: httpx.AsyncClient) -> None:
        self._document = OpenApiDocument(document)
        self._object = self._document.object
        self._client = client
        self.skipped: dict[str, str] = {}

    def operations(self) -> Iterator[tuple[str, str, Object, Object]]:
        """Yield each operation: its method and its path, the path item, and the operation."""
        paths = self._document.value.get("paths")
        for path, each in paths.items() if isinstance(paths, dict) else ():
            try:
                item = self._object(each)
            except UnusableOperation as error:
                self.skipped[str(path)] = str(error)
                continue
            for method in _METHODS:
                if isinstance(given := item.get(method), dict):
                    yield method, str(path), item, given

    def tool(self, id: str, method: str, path: str, item: Object, given: Object) -> OperationTool:
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
        tool.input_schema = self._document.schema(arguments, hidden="readOnly")
        tool.output_schema = self._output(given.get("responses"))
        return tool

    def _parameters(self, path: str, item: Object, given: Object) -> _Parameters:
        """Return the parameters of an operation, those of the path first."""
        # A path may name parameters that are not described.
        found: dict[tuple[str, str], Object] = {
            ("path", name): {"schema": {"type": "string"}} for name in PLACEHOLDER.findall(path)
        }
        in_path = {*found}
        for each in (*listed(item.get("parameters")), *listed(given.get("parameters"))):
            parameter = self._object(each)
            name, place = str(parameter.get("name")), str(parameter.get("in"))
            if place not in _STYLES or (place == "header" and not _TOKEN.fullmatch(name)):
                raise UnusableOperation(f"its parameter {name[:100]!r} is in {place[:100]!r}")
            is_ignored = place == "header" and _RESERVED.fullmatch(name) is not None
            # The user's client may send an API key that the document lists as a parameter.
            is_ignored |= name.lower() in sent_by(self._client, place)
            if not is_ignored and (place != "path" or (place, name) in in_path):
                found[place, name] = parameter
        return [(*key, found[key]) for place in _STYLES for key in found if key[0] == place]

    def _part(self, place: str, name: str, given: Object, taken: Counter[str]) -> RequestPart:
        style = given.get("style", _STYLES[place][0])
        if style not in _STYLES[place]:
            raise UnusableOperation(f"its parameter {name[:100]!r} has the style {style!r:.100}")
        schema = given.get("schema")
        if content := self._object(given.get("content")):
            schema, style = self._object(next(iter(content.values()))).get("schema"), "json"
        # Members beside a `$ref` replace those of its target.
        described: Object = dict(schema) if isinstance(schema, dict) else {}
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

    def _body(self, given: Object) -> tuple[str | None, bytes | None, _Parameters]:
        """Return the media type of a body, what is sent without arguments, and its parts.

        The parts are given as if they were parameters: the members of an object, which become
        arguments beside the parameters. Any other value is the argument `body`.
        """
        content = self._object(given.get("content"))
        types = {str(key).partition(";")[0].strip().lower(): each for key, each in content.items()}
        usable = [each for each in types if is_json(each) or each == FORM]
        if not types:
            return None, None, []
        if not usable:
            raise UnusableOperation(f"its body is {', '.join(types)[:200]}: no JSON and no form")
        media, required = self._object(types[usable[0]]), given.get("required") is True
        root, encoding = self._object(media.get("schema")), self._object(media.get("encoding"))
        properties: Any = root.get("properties")
        is_open = root.get("additionalProperties", False) is not False
        has_members = isinstance(properties, dict) and properties and not is_open
        if has_members and COMPLEX.isdisjoint(root) and not alternatives(root):
            needed = listed(root.get("required"))
            # Many documents forget to say that a body is required: `{}` is accepted, too, then.
            empty = None if needed and not required else b"" if usable[0] == FORM else b"{}"
            members = []
            for name, schema in properties.items():
                style = self._object(encoding.get(name)).get("style", "form")
                member = {"schema": schema, "required": required and name in needed, "style": style}
                members.append(("member", str(name), member))
            return usable[0], empty, members
        if usable[0] == FORM:
            raise UnusableOperation("its form is not an object with properties of its own")
        whole = {**given, "schema": media.get("schema"), "required": required, "content": None}
        return usable[0], None, [("body", "body", whole)]

    def _output(self, responses: Any) -> dict[str, Any] | None:
        """Return the schema of the only successful response, if that is a JSON object."""
        try:
            given = self._object(responses)
            found = [each for status, each in given.items() if str(status).startswith("2")]
            content = self._object(self._object(found[0]).get("content")) if found else {}
            if len(found) != 1 or len(content) != 1 or not is_json(str(next(iter(content)))):
                return None
            schema = self._object(next(iter(content.values()))).get("schema")
            if self._object(schema).get("type") != "object":
                return None
            made = self._document.schema(schema, hidden="writeOnly")
        except UnusableOperation:
            return None  # the operation can be called all the same
        return made if made.get("type") == "object" else None


def _text_of(value: Any) -> str | None:
    return (value.strip()[:MAX_TEXT] or None) if isinstance(value, str) else None


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


def _load(source: Any) -> Object:
    try:
        is_read = isinstance(source, Mapping)
        document = source if is_read else msgspec.json.decode(Path(source).read_bytes())
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
