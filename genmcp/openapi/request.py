"""The request of an operation, made of the arguments of its tool."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import msgspec

from genmcp.content import json_of
from genmcp.errors import ToolError
from genmcp.openapi.document import Object

FORM: Final = "application/x-www-form-urlencoded"
PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")

_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}
# By place, the attribute of a client with what it sends with each request.
_SENT: Final = {"header": "headers", "query": "params", "cookie": "cookies"}
_HEADER: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_Pairs = list[tuple[str, str]]


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


def sent_by(client: httpx.AsyncClient, place: str) -> set[str]:
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

    def build(self, client: httpx.AsyncClient, given: Object) -> httpx.Request:
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
            elif part.argument in given and part.place == "member" and self.media_type != FORM:
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
        if missing := PLACEHOLDER.search(path):
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
        others = (others | sent_by(client, part.place)) - {part.name.lower()}
        for name, _ in pairs:
            read = {name.lower(), name.lower().partition("[")[0]}  # many servers read `a[]` as `a`
            if name != part.name and not others.isdisjoint(read):
                raise ToolError(f"Argument {part.argument!r} cannot set parameter {name!r:.100}.")
        return pairs
