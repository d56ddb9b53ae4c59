"""Which exchange a message opens, and the order in which it is judged."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from genmcp.core.request import RouteFacts
from genmcp.core.server_dispatch import (
    Era,
    check_batch,
    check_legacy,
    era_of,
    modern_request,
    plain_request,
    session_request,
    with_route,
)
from genmcp.core.session import Session
from genmcp.errors import (
    HeaderMismatch,
    HttpRejected,
    InvalidRequest,
    MalformedParams,
    McpError,
    MissingCapability,
    ResourceNotFound,
    UnsupportedVersion,
)
from genmcp.protocol.capabilities import TASKS, ClientCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    RequestParams,
)
from genmcp.protocol.revisions.chain import LATEST, LEGACY, REVISIONS
from genmcp.protocol.value import Result
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message
from genmcp.wire.param_headers import HeaderRule

MODERN_VERSION = "2026-07-28"
META = {PROTOCOL_VERSION: MODERN_VERSION, CLIENT_CAPABILITIES: {}}


class PartParams(RequestParams):
    part: str


# The methods of extensions: one that clients need not declare, and one that they must.
NEEDED = "com.example/needed"
ADDED = {
    "stock/level": Method("stock/level", PartParams, Result),
    "stock/needed": Method("stock/needed", PartParams, Result, needs=NEEDED),
}


class Offer:
    """Offers some methods, the tools `add` and `zone`, a prompt and a resource."""

    routes: Mapping[tuple[str, str], RouteFacts] = {
        ("tools/call", "add"): RouteFacts(),
        ("tools/call", "zone"): RouteFacts(
            header_rules=(HeaderRule(b"mcp-param-zone", ("zone",), "string"),)
        ),
        ("tools/call", "late"): RouteFacts(pending=True),
        ("prompts/get", "greet"): RouteFacts(),
        ("resources/read", "file:///a"): RouteFacts(),
    }

    def __init__(self, *without: str) -> None:
        self.without = without

    def offers(self, method: str) -> bool:
        return method not in (*self.without, "unknown/method")

    def added(self, method: str) -> Method | None:
        return ADDED.get(method)

    def find(self, method: str, key: str) -> Any:
        return self.routes.get((method, key))


def message(method: str | None, params: Any = None, id: int | str | None = 1) -> Message:
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    if method is None:
        body["result"] = {}
    else:
        body["method"] = method
    if id is not None:
        body["id"] = id
    if params is not None:
        body["params"] = params
    decoded = jsonrpc.decode(json.dumps(body).encode())
    assert isinstance(decoded, Message)
    return decoded


def head(**headers: str | None) -> dict[bytes, bytes]:
    """Return headers: `mcp_name="add"` is the header `mcp-name`; None leaves one out."""
    return {
        name.replace("_", "-").encode(): value.encode()
        for name, value in headers.items()
        if value is not None
    }


def refused(error: McpError) -> tuple[int, int]:
    return error.code, error.status


MISMATCH, MALFORMED, UNSUPPORTED = (-32020, 400), (-32602, 400), (-32022, 400)
NOT_FOUND, NO_SESSION, UNKNOWN = (-32601, 404), (-32600, 400), (-32602, 200)


@pytest.mark.parametrize(
    ("version", "claimed", "session", "method", "expected"),
    [
        # A modern version in the header decides, whatever else is present.
        (MODERN_VERSION, MODERN_VERSION, None, "tools/list", Era.MODERN),
        (MODERN_VERSION, None, None, "tools/list", Era.MODERN),
        (MODERN_VERSION, "v999.0.0", None, "tools/list", Era.MODERN),
        (MODERN_VERSION, MODERN_VERSION, "s", "tools/list", Era.MODERN),
        (MODERN_VERSION, MODERN_VERSION, None, "initialize", Era.MODERN),
        (MODERN_VERSION, None, None, "notifications/cancelled", Era.MODERN),
        # An initialize without it is a handshake, in a session or not.
        (None, None, None, "initialize", Era.HANDSHAKE),
        (None, MODERN_VERSION, None, "initialize", Era.HANDSHAKE),
        ("2025-11-25", None, None, "initialize", Era.HANDSHAKE),
        ("2024-11-05", None, "s", "initialize", Era.HANDSHAKE),
        # The rest belongs to the session it names.
        (None, None, "s", "tools/list", Era.SESSION),
        ("2025-03-26", None, "s", "tools/list", Era.SESSION),
        ("2025-11-25", None, "s", None, Era.SESSION),
        ("2025-06-18", None, "s", "notifications/initialized", Era.SESSION),
        # Without a session: 2025-11-25, transports, "Session Management", point 2.
        (None, None, None, "tools/list", NO_SESSION),
        (None, None, None, None, NO_SESSION),
        ("2025-11-25", None, None, "tools/list", NO_SESSION),
        ("2025-11-25", "2025-11-25", None, "tools/list", NO_SESSION),
        # `_meta` speaks of a version that the header does not.
        (None, MODERN_VERSION, None, "tools/list", MISMATCH),
        (None, "v999.0.0", None, "tools/list", MISMATCH),
        ("2025-11-25", MODERN_VERSION, None, "tools/list", MISMATCH),
        ("v999.0.0", MODERN_VERSION, None, "tools/list", MISMATCH),
        # A version that is not served, also in a session (2025-11-25: 400).
        ("v999.0.0", "v999.0.0", None, "tools/list", UNSUPPORTED),
        ("v999.0.0", None, None, "tools/list", UNSUPPORTED),
        ("v999.0.0", None, None, "initialize", UNSUPPORTED),
        ("v999.0.0", None, "s", "tools/list", UNSUPPORTED),
        ("", None, "s", "tools/list", UNSUPPORTED),
        ("\xe9", None, None, "tools/list", UNSUPPORTED),
    ],
)
def test_dispatch_era_follows_from_the_first_request(
    version: str | None,
    claimed: str | None,
    session: str | None,
    method: str | None,
    expected: Era | tuple[int, int],
) -> None:
    """2026-07-28, versioning, "Backward Compatibility with Initialization-Based Versions"."""
    params = None if claimed is None else {"_meta": {PROTOCOL_VERSION: claimed}}
    given = head(mcp_protocol_version=version, mcp_session_id=session)
    asked = message(method, params)

    if isinstance(expected, Era):
        assert expected is era_of(given, asked)
    else:
        with pytest.raises(McpError) as caught:
            era_of(given, asked)
        assert expected == refused(caught.value)


@pytest.mark.parametrize("params", [[1], {"_meta": 1}, {"_meta": {PROTOCOL_VERSION: 1}}])
def test_dispatch_unreadable_params_name_no_version(params: Any) -> None:
    """A message without header and session is rejected for that reason, even with bad params."""
    with pytest.raises(InvalidRequest, match="no Mcp-Session-Id header"):
        era_of(head(), message("tools/list", params))


def test_dispatch_unsupported_version_lists_the_supported_ones() -> None:
    """The client may choose another one (2026-07-28, UnsupportedProtocolVersionError)."""
    with pytest.raises(McpError) as caught:
        era_of(head(mcp_protocol_version="v9"), message("tools/list"))

    assert {"requested": "v9", "supported": list(REVISIONS)} == caught.value.data


@pytest.mark.parametrize(
    ("version", "refusal", "status"),
    [
        (None, None, 0),
        (b"2024-11-05", None, 0),
        (b"2025-03-26", InvalidRequest, 400),
        (b"2025-11-25", InvalidRequest, 400),
        (b"2026-07-28", HttpRejected, 405),
        (b"2031-01-01", UnsupportedVersion, 400),
        (b"\xff", UnsupportedVersion, 400),
    ],
)
def test_dispatch_streams_of_sessions_need_a_legacy_revision(
    version: bytes | None, refusal: type[McpError] | None, status: int
) -> None:
    """2026-07-28, "Earlier Streamable HTTP Revisions": 405; an unknown version is 400.

    2025-11-25, "Session Management", point 2: so is the lack of a session id.
    """
    headers = {} if version is None else {b"mcp-protocol-version": version}

    if refusal is None:
        check_legacy(headers)
    else:
        with pytest.raises(refusal) as caught:
            check_legacy(headers)
        assert status == caught.value.status


@pytest.mark.parametrize("version", [b"2026-07-28", b"2031-01-01"])
def test_dispatch_batch_needs_a_session_of_its_revision(version: bytes) -> None:
    """A batch is a 400 without a session, and on a version without batches."""
    with pytest.raises(McpError) as outside:
        check_batch({})
    with pytest.raises(McpError) as elsewhere:
        check_batch({b"mcp-session-id": b"s", b"mcp-protocol-version": version})

    assert [outside.value.status, elsewhere.value.status] == [400, 400]
    check_batch({b"mcp-session-id": b"s", b"mcp-protocol-version": b"2025-03-26"})


def modern(
    method: str = "tools/call", params: Any = None, catalog: Offer | None = None, **headers: Any
) -> Any:
    """Make a valid request with the given changes.

    The fast path decodes the same request, and never accepts a rejected one.
    """
    if params is None:
        params = {"name": "add", "_meta": META}
    standard = {"mcp_protocol_version": MODERN_VERSION, "mcp_method": method, "mcp_name": "add"}
    given, catalog = head(**standard | headers), catalog or Offer()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    at_once = plain_request(given, body, catalog)
    try:
        request = modern_request(given, message(method, params), catalog)
    except McpError:
        assert at_once is None
        raise
    if at_once is not None:
        for name in ("id", "method", "params", "revision", "client", "session", "route", "meta"):
            assert getattr(request, name) == getattr(at_once, name)
    return request


def test_dispatch_plain_request_is_decoded_once() -> None:
    """A valid one is decoded once, with the params type of the method header."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body |= {"params": {"name": "add", "_meta": META}}
    given = head(mcp_protocol_version=MODERN_VERSION, mcp_method="tools/call", mcp_name="add")

    request = plain_request(given, json.dumps(body).encode(), Offer())

    assert request is not None
    assert Offer.routes["tools/call", "add"] is request.route


@pytest.mark.parametrize("name", ["=?base64?YWRk?=", "h\u00e9"])
def test_dispatch_name_with_invalid_header_chars_is_rejected(name: str) -> None:
    """An intermediary reads another name in such a header, or none."""
    with pytest.raises(HeaderMismatch):
        modern(params={"name": name, "_meta": META}, mcp_name=name)


@pytest.mark.parametrize("name", ["mcp_protocol_version", "mcp_method", "mcp_name"])
def test_dispatch_blanks_around_a_header_are_ignored(name: str) -> None:
    """RFC 9110, 5.5: they are not part of the value, but not every server strips them."""
    standard = {"mcp_protocol_version": MODERN_VERSION, "mcp_method": "tools/call"}
    standard |= {"mcp_name": "add"}
    blank: Any = {name: f" {standard[name]}\t"}

    assert modern(**blank).params.name == "add"


def test_dispatch_modern_request_is_self_contained() -> None:
    """A request of 2026-07-28 has its client, its params and its route."""
    meta = {**META, CLIENT_INFO: {"name": "c", "version": "1"}, LOG_LEVEL: "error", "own": 1}
    request = modern(params={"name": "add", "arguments": {"a": 1}, "_meta": meta})

    assert (
        request.id,
        request.method,
        request.revision,
        request.session,
    ) == (1, "tools/call", LATEST, None)
    assert (request.params.name, bytes(request.params.arguments)) == ("add", b'{"a": 1}')
    assert (request.client.revision, request.client.info.name) == (MODERN_VERSION, "c")
    assert request.client.capabilities == ClientCapabilities()
    assert Offer.routes["tools/call", "add"] is request.route
    assert (request.log_level, request.progress_token) == ("error", None)
    assert meta == request.meta


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("server/discover", {}, None),
        ("tools/list", {"cursor": "x"}, None),
        ("prompts/get", {"name": "greet"}, "greet"),
        ("resources/read", {"uri": "file:///a"}, "file:///a"),
        ("resources/read", {"uri": "file:///a"}, "=?base64?ZmlsZTovLy9h?="),
        ("subscriptions/listen", {"notifications": {}}, None),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "b", "value": ""}},
            None,
        ),
    ],
)
def test_dispatch_modern_methods_are_those_of_the_revision(
    method: str, params: dict[str, Any], name: str | None
) -> None:
    """Methods that name a tool, prompt or resource need `Mcp-Name`; others do not."""
    request = modern(method, {**params, "_meta": META}, mcp_name=name)

    assert method == request.method
    assert (name is None) == (request.route is None)


def test_dispatch_without_headers_checks_the_body_only() -> None:
    """A transport without headers has nothing to compare the body with."""
    for name in ("add", "zone"):
        params = {"name": name, "arguments": {"zone": "a"}, "_meta": META}

        request = modern_request(None, message("tools/call", params), Offer())

        assert name == request.params.name  # type: ignore[attr-defined]

    with pytest.raises(McpError) as caught:
        modern_request(
            None, message("tools/list", {"_meta": {**META, PROTOCOL_VERSION: "v9"}}), Offer()
        )

    assert refused(caught.value) == UNSUPPORTED


CAPABLE: dict[str, Any] = {CLIENT_CAPABILITIES: {}}
VERSIONED = {PROTOCOL_VERSION: MODERN_VERSION}
OTHER = {PROTOCOL_VERSION: "2025-11-25", **CAPABLE}


@pytest.mark.parametrize(
    ("method", "params", "headers", "expected"),
    [
        # `_meta` is there and right, before anything else.
        ("unknown/method", {"_meta": []}, {"mcp_method": "x"}, MALFORMED),
        ("unknown/method", [1], {"mcp_method": "x"}, MALFORMED),
        ("tools/call", {}, {"mcp_method": "x"}, MALFORMED),
        ("tools/call", {"_meta": CAPABLE}, {"mcp_method": "x"}, MALFORMED),
        ("tools/call", {"_meta": VERSIONED}, {"mcp_method": "x"}, MALFORMED),
        ("tools/call", {"_meta": {**META, CLIENT_CAPABILITIES: []}}, {}, MALFORMED),
        # Then the header equals it, though params or routing headers are wrong as well.
        ("tools/call", {"name": 1, "_meta": OTHER}, {"mcp_method": "x"}, MISMATCH),
        # Then the routing headers, before the method is looked for.
        ("unknown/method", {"_meta": META}, {"mcp_method": "x"}, MISMATCH),
        ("unknown/method", {"_meta": META}, {"mcp_method": None}, MISMATCH),
        ("tools/call", {"name": 1, "_meta": META}, {"mcp_method": "TOOLS/CALL"}, MISMATCH),
        ("tools/list", {"_meta": META}, {"mcp_method": "prompts/list"}, MISMATCH),
        # Then the method.
        ("unknown/method", {"_meta": META}, {}, NOT_FOUND),
        ("initialize", {"_meta": META}, {}, NOT_FOUND),
        ("ping", {"_meta": META}, {}, NOT_FOUND),
        ("logging/setLevel", {"_meta": META}, {}, NOT_FOUND),
        ("resources/subscribe", {"_meta": META}, {}, NOT_FOUND),
        ("resources/unsubscribe", {"_meta": META}, {}, NOT_FOUND),
        ("roots/list", {"_meta": META}, {}, NOT_FOUND),
        ("sampling/createMessage", {"_meta": META}, {}, NOT_FOUND),
        ("elicitation/create", {"_meta": META}, {}, NOT_FOUND),
        ("notifications/cancelled", {"_meta": META}, {}, NOT_FOUND),
        ("resources/list", {"_meta": META}, {}, NOT_FOUND),
        ("resources/list", {"cursor": 1, "_meta": META}, {}, NOT_FOUND),
        # Then its params, and the name among them.
        ("tools/call", {"_meta": META}, {"mcp_name": "x"}, MALFORMED),
        ("tools/call", {"name": 1, "_meta": META}, {"mcp_name": "x"}, MALFORMED),
        ("tools/list", {"cursor": 1, "_meta": META}, {}, MALFORMED),
        ("tools/call", {"name": "add", "_meta": META}, {"mcp_name": "x"}, MISMATCH),
        ("tools/call", {"name": "add", "_meta": META}, {"mcp_name": None}, MISMATCH),
        ("tools/call", {"name": "no", "_meta": META}, {"mcp_name": "x"}, MISMATCH),
        ("tools/call", {"name": "no", "_meta": META}, {"mcp_name": "no"}, UNKNOWN),
        ("prompts/get", {"name": "no", "_meta": META}, {"mcp_name": "no"}, UNKNOWN),
        ("resources/read", {"uri": "no", "_meta": META}, {"mcp_name": "no"}, UNKNOWN),
        # Then the mirrored arguments.
        (
            "tools/call",
            {"name": "zone", "arguments": {"zone": "a"}, "_meta": META},
            {"mcp_name": "zone"},
            MISMATCH,
        ),
        (
            "tools/call",
            {"name": "zone", "_meta": META},
            {"mcp_name": "zone", "mcp_param_zone": "a"},
            MISMATCH,
        ),
    ],
)
def test_dispatch_modern_faults_are_reported_in_order(
    method: str, params: Any, headers: dict[str, str | None], expected: tuple[int, int]
) -> None:
    """`_meta`, version, routing headers, method, params, mirrored arguments: the first one."""
    with pytest.raises(McpError) as caught:
        modern(method, params, Offer("resources/list"), **headers)

    assert expected == refused(caught.value)


def test_dispatch_name_of_a_task_is_optional() -> None:
    """SEP-2663: clients send it, servers do not require it; a wrong one is an error."""
    params = {"taskId": "t", "_meta": {**META, CLIENT_CAPABILITIES: {"extensions": {TASKS: {}}}}}

    assert modern("tasks/get", params, mcp_name=None).method == "tasks/get"
    assert modern("tasks/get", params, mcp_name="t").method == "tasks/get"
    with pytest.raises(HeaderMismatch):
        modern("tasks/get", params, mcp_name="other")


def legacy_session(*extensions: str) -> Session:
    capabilities = ClientCapabilities(extensions={name: {} for name in extensions} or None)
    return Session("key", 0.0, "2025-11-25", "c", "1", capabilities)


def test_dispatch_method_of_an_extension_is_decoded() -> None:
    """SEP-2133: on every revision, with the types that the extension gives."""
    params = {"part": "bolt"}
    request = modern("stock/level", {**params, "_meta": META}, mcp_name=None)
    legacy = session_request(legacy_session(), message("stock/level", params), Offer())

    assert [request.params.part, legacy.params] == ["bolt", PartParams(part="bolt")]
    with pytest.raises(MalformedParams):
        modern("stock/level", {"_meta": META}, mcp_name=None)


def test_dispatch_extension_must_be_declared() -> None:
    """SEP-2133, "Graceful Degradation": the error names the extension that is missing."""
    params = {"part": "bolt"}
    declared = {**META, CLIENT_CAPABILITIES: {"extensions": {NEEDED: {}}}}
    asked = message("stock/needed", params)

    with pytest.raises(MissingCapability) as caught:
        modern("stock/needed", {**params, "_meta": META}, mcp_name=None)
    with pytest.raises(MissingCapability):
        session_request(legacy_session(), asked, Offer())

    assert caught.value.data == {"requiredCapabilities": {"extensions": {NEEDED: {}}}}
    assert modern("stock/needed", {**params, "_meta": declared}, mcp_name=None).params.part
    assert session_request(legacy_session(NEEDED), asked, Offer()).method == "stock/needed"


def test_dispatch_keeps_mirrored_headers_for_a_pending_route() -> None:
    """The arguments that they repeat are known only when the route is found."""
    params = {"name": "late", "arguments": {"zone": "a"}, "_meta": META}

    request = modern(params=params, mcp_name="late", mcp_param_zone="a")

    assert request.param_headers == {b"mcp-param-zone": b"a"}


def test_dispatch_resolved_route_is_checked_by_the_kept_headers() -> None:
    """The request with the route is a new value; the one of the message is not changed."""
    params = {"name": "late", "arguments": {"zone": "a"}, "_meta": META}
    pending = modern(params=params, mcp_name="late", mcp_param_zone="a")
    route = RouteFacts(header_rules=(HeaderRule(b"mcp-param-zone", ("zone",), "string"),))

    request = with_route(pending, route)

    assert (route, None) == (request.route, request.param_headers)
    assert route == with_route(request, route).route  # no headers: checked, or on a pipe
    assert (pending.route, pending.param_headers is not None) == (RouteFacts(pending=True), True)
    wrong = modern(params=params, mcp_name="late", mcp_param_zone="b")
    with pytest.raises(HeaderMismatch):
        with_route(wrong, route)


def test_dispatch_mirrored_argument_that_agrees_is_accepted() -> None:
    """A header must equal its argument; null has no header."""
    for arguments, zone in (({"zone": "a"}, "a"), ({"zone": None}, None), ({}, None), (None, None)):
        params = {"name": "zone", "_meta": META}
        params |= {} if arguments is None else {"arguments": arguments}

        request = modern(params=params, mcp_name="zone", mcp_param_zone=zone)

        assert request.params.name == "zone"


def test_dispatch_numbers_out_of_range_are_malformed() -> None:
    """They are the client's error even if only a header requires them to be decoded."""
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"zone",'
        b'"arguments":{"zone":1e999},"_meta":' + json.dumps(META).encode() + b"}}"
    )
    asked = jsonrpc.decode(body)
    assert isinstance(asked, Message)
    given = head(mcp_protocol_version=MODERN_VERSION, mcp_method="tools/call", mcp_name="zone")

    with pytest.raises(MalformedParams):
        modern_request(given, asked, Offer())


@pytest.mark.parametrize(
    ("method", "key", "words", "data"),
    [
        ("tools/call", "name", "Unknown tool: no", {"name": "no"}),
        ("prompts/get", "name", "Unknown prompt: no", {"name": "no"}),
        ("resources/read", "uri", "Resource not found: no", {"uri": "no"}),
    ],
)
def test_dispatch_unknown_name_is_in_the_error(
    method: str, key: str, words: str, data: dict[str, str]
) -> None:
    """A client of either era reads which name does not exist."""
    with pytest.raises(McpError, match=words) as modern_fault:
        modern(method, {key: "no", "_meta": META}, mcp_name="no")
    with pytest.raises(McpError, match=words) as session_fault:
        session_request(session(), message(method, {key: "no"}), Offer())

    assert data == modern_fault.value.data == session_fault.value.data


def session(version: str = "2025-11-25") -> Session:
    return Session("key", 0.0, version, "c", "1", ClientCapabilities())


def test_dispatch_session_request_is_self_contained() -> None:
    """A request of a session has the session's revision and client."""
    params = {"name": "add", "arguments": {}, "_meta": {"progressToken": 7}}

    request = session_request(session(), message("tools/call", params, "a"), Offer())

    assert (request.id, request.method, request.session) == ("a", "tools/call", "key")
    assert REVISIONS["2025-11-25"] is request.revision
    assert session().client == request.client
    assert Offer.routes["tools/call", "add"] is request.route
    assert (request.progress_token, request.log_level) == (7, None)
    assert session_request(session(), message("ping"), Offer()).meta == {}


def test_dispatch_session_ignores_members_of_2026() -> None:
    """Members that a later revision defines have no meaning in an earlier one."""
    request = session_request(
        session(), message("tools/list", {"_meta": {LOG_LEVEL: "debug"}}), Offer()
    )

    assert request.log_level is None


@pytest.mark.parametrize("revision", LEGACY, ids=lambda revision: revision.version)
@pytest.mark.parametrize(
    "method",
    ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tools/list"],
)
def test_dispatch_session_methods_are_those_of_its_revision(method: str, revision: Any) -> None:
    """Methods that 2026-07-28 removed exist before it."""
    params = {"level": "info", "uri": "file:///a"}

    request = session_request(session(revision.version), message(method, params), Offer())

    assert (method, revision) == (request.method, request.revision)


@pytest.mark.parametrize("revision", LEGACY, ids=lambda revision: revision.version)
@pytest.mark.parametrize(
    "method",
    [
        "server/discover",
        "subscriptions/listen",
        "sampling/createMessage",
        "roots/list",
        "elicitation/create",
        "notifications/message",
        "unknown/method",
    ],
)
def test_dispatch_session_has_no_other_methods(method: str, revision: Any) -> None:
    """A client can call neither methods of later revisions nor those that servers send."""
    with pytest.raises(McpError) as caught:
        session_request(session(revision.version), message(method, {}), Offer())

    assert refused(caught.value) == NOT_FOUND


def test_dispatch_session_method_must_be_offered() -> None:
    """A method that the server does not offer is not found, even with bad params."""
    with pytest.raises(McpError) as caught:
        session_request(session(), message("tools/list", [1]), Offer("tools/list"))

    assert refused(caught.value) == NOT_FOUND


@pytest.mark.parametrize("params", [[1], "a", {"name": 1}, {}, {"_meta": 1}])
def test_dispatch_session_params_must_be_valid(params: Any) -> None:
    """Invalid params are rejected before any tool gets them."""
    with pytest.raises(MalformedParams) as caught:
        session_request(session(), message("tools/call", params), Offer())

    assert refused(caught.value) == MALFORMED


LONG = "file:///" + "é" * 1021


@pytest.mark.parametrize("uri", [LONG, LONG + "x" * 5000])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", lambda uri: {"uri": uri}),
        ("tools/call", lambda uri: {"name": uri, "arguments": {}}),
        ("resources/subscribe", lambda uri: {"uri": uri}),
        ("resources/unsubscribe", lambda uri: {"uri": uri}),
        (
            "completion/complete",
            lambda uri: {
                "ref": {"type": "ref/resource", "uri": uri},
                "argument": {"name": "a", "value": ""},
            },
        ),
        (
            "completion/complete",
            lambda uri: {
                "ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": uri, "value": ""},
            },
        ),
    ],
)
def test_dispatch_long_names_are_rejected(method: str, params: Any, uri: str) -> None:
    """A URI is matched, resolved and kept: 2,050 bytes are over the limit of 2,048."""
    with pytest.raises(MalformedParams, match=r"more than 2048 bytes") as raised:
        session_request(session(), message(method, params(uri)), Offer())

    assert (raised.value.code, raised.value.status) == (-32602, 400)


@pytest.mark.parametrize("method", ["resources/read", "completion/complete"])
def test_dispatch_long_names_are_rejected_when_modern(method: str) -> None:
    """The same bound holds on 2026-07-28, with headers and without."""
    params: Any = {"uri": "x" * 3000}
    if method == "completion/complete":
        ref = {"type": "ref/prompt", "name": "x" * 3000}
        params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    with pytest.raises(MalformedParams, match=r"more than 2048 bytes"):
        modern_request(None, message(method, {**params, "_meta": META}), Offer())


def test_dispatch_name_as_long_as_allowed_is_found() -> None:
    """Bytes count, and the limit itself is allowed."""
    with pytest.raises(ResourceNotFound):
        session_request(
            session(), message("resources/read", {"uri": "x" * 2042 + "é" * 3}), Offer()
        )
