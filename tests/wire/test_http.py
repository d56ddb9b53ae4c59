"""HTTP heads: the allowed callers, and the accepted media types."""

import re
from typing import Any

import pytest

from genmcp.errors import ConfigurationError, HttpRejected
from genmcp.wire.http import (
    HeaderPolicy,
    Security,
    check_get_headers,
    check_post_headers,
    cors_headers,
    preflight_headers,
)

LOCAL, REMOTE = "127.0.0.1", "203.0.113.7"


def admitted(
    *headers: tuple[str, str], peer: str | None = REMOTE, security: Security | None = None
) -> dict[bytes, bytes]:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return HeaderPolicy(security or Security()).check(raw, peer)


def status_of(*headers: tuple[str, str], **options: Any) -> int:
    try:
        admitted(*headers, **options)
    except HttpRejected as error:
        assert error.code == -32600
        return error.status
    return 200


@pytest.mark.parametrize(
    ("origin", "peer", "allowed", "status"),
    [
        # A loopback origin on a loopback connection is allowed.
        ("http://localhost", LOCAL, [], 200),
        ("http://localhost:3000", LOCAL, [], 200),
        ("HTTP://LocalHost:3000", LOCAL, [], 200),
        ("https://app.localhost:8443", LOCAL, [], 200),
        ("http://127.0.0.1:6274", LOCAL, [], 200),
        ("http://127.8.9.1", LOCAL, [], 200),
        ("http://[::1]:6274", LOCAL, [], 200),
        ("http://[::1]", "::1", [], 200),
        ("http://localhost:3000", "::ffff:127.0.0.1", [], 200),
        # Not a remote origin: any machine has such origins.
        ("http://localhost:3000", REMOTE, [], 403),
        ("http://localhost:3000", None, [], 403),
        ("http://localhost:3000", "testclient", [], 403),
        ("http://localhost:3000", "", [], 403),
        # Others are not, however much they look like one.
        ("https://evil.example", LOCAL, [], 403),
        ("http://localhost.evil.example", LOCAL, [], 403),
        ("http://evil-localhost", LOCAL, [], 403),
        ("http://127.0.0.1.evil.example", LOCAL, [], 403),
        ("http://localhost:80@evil.example", LOCAL, [], 403),
        ("http://[::1].evil.example", LOCAL, [], 403),
        ("http://[::1", LOCAL, [], 403),
        ("http://192.168.1.5", LOCAL, [], 403),
        ("http://0.0.0.0:3000", LOCAL, [], 403),
        ("http://[::ffff:192.168.1.5]", LOCAL, [], 403),
        ("localhost", LOCAL, [], 403),
        ("file://", LOCAL, [], 403),
        ("", LOCAL, [], 403),
        ("null", LOCAL, [], 403),
        ("null", REMOTE, [], 403),
        # A listed origin is allowed, from any host, if it is equal.
        ("https://app.example.com", REMOTE, ["https://app.example.com"], 200),
        ("https://APP.example.com", REMOTE, ["https://app.EXAMPLE.com"], 200),
        ("http://app.example.com", REMOTE, ["https://app.example.com"], 403),
        ("https://app.example.com:8443", REMOTE, ["https://app.example.com"], 403),
        ("https://app.example.com.evil.example", REMOTE, ["https://app.example.com"], 403),
        ("chrome-extension://abc", REMOTE, ["chrome-extension://abc"], 200),
        ("null", REMOTE, ["null"], 200),
        ("https://evil.example", REMOTE, ["null"], 403),
        ("https://anything.example", REMOTE, ["*"], 200),
        ("null", REMOTE, ["*"], 200),
    ],
)
def test_http_origin_must_be_known(
    origin: str, peer: str | None, allowed: list[str], status: int
) -> None:
    """2026-07-28, Streamable HTTP, "Security & Endpoint": an invalid Origin gives a 403."""
    headers = [("host", "localhost"), ("origin", origin)]

    assert status == status_of(*headers, peer=peer, security=Security(allowed_origins=allowed))


@pytest.mark.parametrize(
    ("host", "peer", "allowed", "status"),
    [
        # Loopback connections are for the names of this machine ...
        ("localhost", LOCAL, None, 200),
        ("LOCALHOST:8000", LOCAL, None, 200),
        ("api.localhost:8000", LOCAL, None, 200),
        ("127.0.0.1", LOCAL, None, 200),
        ("127.0.0.1:8000", LOCAL, None, 200),
        ("127.1.2.3:8000", "127.1.2.3", None, 200),
        ("[::1]", "::1", None, 200),
        ("[::1]:8000", "::1", None, 200),
        ("[::ffff:127.0.0.1]:8000", "::ffff:127.0.0.1", None, 200),
        # ... and for no name that a foreign DNS points here.
        ("evil.example", LOCAL, None, 421),
        ("evil.example:8000", "::1", None, 421),
        ("evil.example:8000", "::ffff:127.0.0.1", None, 421),
        ("127.0.0.1.nip.example", LOCAL, None, 421),
        ("localhost.evil.example", LOCAL, None, 421),
        ("localhost:8000@evil.example", LOCAL, None, 421),
        ("localhost/evil.example", LOCAL, None, 421),
        ("[::1]evil.example", LOCAL, None, 421),
        ("192.168.1.5:8000", LOCAL, None, 421),
        ("", LOCAL, None, 421),
        (None, LOCAL, None, 421),
        # Beyond loopback, a server's names must be configured.
        ("evil.example", REMOTE, None, 200),
        (None, REMOTE, None, 200),
        ("evil.example", None, None, 200),
        # Behind a proxy on this machine, the public name is to be listed.
        ("mcp.example.com", LOCAL, ["mcp.example.com"], 200),
        ("MCP.example.com:8443", LOCAL, ["mcp.EXAMPLE.com"], 200),
        ("localhost:8000", LOCAL, ["mcp.example.com"], 200),
        # Listed names hold everywhere.
        ("mcp.example.com", REMOTE, ["mcp.example.com"], 200),
        ("mcp.example.com:8443", REMOTE, ["mcp.example.com"], 200),
        ("mcp.example.com:8443", REMOTE, ["mcp.example.com:8443"], 200),
        ("mcp.example.com", REMOTE, ["mcp.example.com:8443"], 421),
        ("evil.example", REMOTE, ["mcp.example.com"], 421),
        ("localhost", REMOTE, ["mcp.example.com"], 421),
        ("xmcp.example.com", REMOTE, ["mcp.example.com"], 421),
        (None, REMOTE, ["mcp.example.com"], 421),
        ("mcp.example.com", REMOTE, [], 421),
        ("[fd00::1]:8000", REMOTE, ["[FD00::1]"], 200),
        ("[fd00::1]:8000", REMOTE, ["[fd00::1]:8000"], 200),
        ("[fd00::2]:8000", REMOTE, ["[fd00::1]"], 421),
        # A wildcard stands for labels in front, with any port or with its own.
        ("mcp.example.com", REMOTE, ["*.example.com"], 200),
        ("a.b.example.com:8443", REMOTE, ["*.example.com"], 200),
        ("example.com", REMOTE, ["*.example.com"], 421),
        ("evilexample.com", REMOTE, ["*.example.com"], 421),
        ("mcp.example.com.evil.example", REMOTE, ["*.example.com"], 421),
        ("evil.example/.example.com", REMOTE, ["*.example.com"], 421),
        ("mcp.example.com:8443", REMOTE, ["*.example.com:8443"], 200),
        ("mcp.example.com:9000", REMOTE, ["*.example.com:8443"], 421),
        ("evil.example", REMOTE, ["a.example", "*.b.example"], 421),
        ("evil.example", LOCAL, ["*"], 200),
        (None, REMOTE, ["*"], 200),
    ],
)
def test_http_host_must_be_a_name_of_this_server(
    host: str | None, peer: str | None, allowed: list[str] | None, status: int
) -> None:
    """A page that rebinds its name to this machine gets 421 because of `Host` (RFC 9110)."""
    headers = [] if host is None else [("host", host)]

    assert status == status_of(*headers, peer=peer, security=Security(allowed_hosts=allowed))


@pytest.mark.parametrize(
    ("host", "peer", "allowed", "status"),
    [
        ("mcp.example.com", LOCAL, None, 200),
        ("MCP.example.com:8443", LOCAL, None, 200),
        ("mcp.example.com", REMOTE, ["other.example.com"], 200),
        ("other.example.com", LOCAL, None, 421),
        ("mcp.example.com.evil.example", LOCAL, None, 421),
        ("", LOCAL, None, 421),
    ],
)
def test_http_host_of_the_resource_is_accepted(
    host: str, peer: str, allowed: list[str] | None, status: int
) -> None:
    """The URL that clients use is the operator's own word; an attacker's names are others."""
    policy = HeaderPolicy(Security(allowed_hosts=allowed), "https://mcp.Example.com/mcp")
    try:
        policy.check([(b"host", host.encode())], peer)
    except HttpRejected as error:
        assert error.status == status
    else:
        assert status == 200


def test_rejection_names_value_and_setting() -> None:
    """The body of a rejection names the setting to change."""
    with pytest.raises(HttpRejected, match=r"https://a\.example.*allowed_origins"):
        admitted(("origin", "https://a.example"))
    with pytest.raises(HttpRejected, match=r"a\.example.*allowed_hosts"):
        admitted(("host", "a.example"), peer=LOCAL)


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_origins": "https://app.example.com"},
        {"allowed_origins": ["app.example.com"]},
        {"allowed_origins": ["https://app.example.com/"]},
        {"allowed_origins": ["https://app.example.com/page"]},
        {"allowed_origins": ["https://*.example.com"]},
        {"allowed_origins": ["https://"]},
        {"allowed_origins": [""]},
        {"allowed_hosts": "mcp.example.com"},
        {"allowed_hosts": ["https://mcp.example.com"]},
        {"allowed_hosts": ["mcp.example.com/"]},
        {"allowed_hosts": ["mcp.*.com"]},
        {"allowed_hosts": ["::1"]},
        {"allowed_hosts": ["mcp.example.com:"]},
        {"allowed_hosts": [""]},
    ],
)
def test_security_that_never_matches_is_rejected(options: dict[str, Any]) -> None:
    """A wrong option fails at construction, and the message names it (DESIGN: rule 5)."""
    (name,) = options

    with pytest.raises(ConfigurationError, match=name):
        Security(**options)


@pytest.mark.parametrize(
    "name",
    [
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-param-region",
        "mcp-protocol-version",
        "mcp-session-id",
        "origin",
    ],
)
def test_repeated_header_is_rejected(name: str) -> None:
    """Two readers could choose different ones."""
    with pytest.raises(HttpRejected, match=f"The {name} header is given more than once") as caught:
        admitted((name, "a"), ("accept", "b"), (name, "a"))

    assert caught.value.status == 400


def test_http_header_that_is_a_list_may_come_in_parts() -> None:
    """RFC 9110, 5.3: several lines of one name are one list, in their order."""
    table = admitted(("accept", "application/json "), ("x", "1"), ("accept", " text/event-stream"))

    assert table == {b"accept": b"application/json, text/event-stream", b"x": b"1"}
    assert check_post_headers(b"application/json", table.get(b"accept", b"*/*"))


def test_http_blanks_around_a_value_do_not_count() -> None:
    """RFC 9110, 5.5: they do not belong to the value, though not every server strips them."""
    for host in (" localhost\t", "localhost"):
        admitted(("host", host), ("origin", f" http://{host.strip()} "), peer=LOCAL)
    with pytest.raises(HttpRejected):
        admitted(("host", " elsewhere.example "), peer=LOCAL)


@pytest.mark.parametrize(
    ("accept", "json", "stream"),
    [
        (None, True, True),
        ("*/*", True, True),
        ("application/json, text/event-stream", True, True),
        ("text/event-stream,application/json", True, True),
        ("Application/JSON;q=0.9 , TEXT/event-stream", True, True),
        ("application/json", True, False),
        ("application/*", True, False),
        ("text/event-stream", False, True),
        ("text/*", False, True),
        ("application/json;charset=utf-8, text/event-stream;q=0.1", True, True),
        ("text/html", False, False),
        ("", False, False),
        ("application/json;q=0, text/event-stream", False, True),
        ("application/json, text/event-stream;q=0.000", True, False),
        ("application/json; q=0.0 , */*", False, True),
        ("*/*, text/event-stream ; q=0", True, False),
        ("application/*;q=0, application/json, text/*", True, True),
        ("*/*;q=0", False, False),
        ("*/*;q=0, application/json", True, False),
        ("application/json;q=0, application/json", True, False),
        ("application/json, application/json;q=0", True, False),
        ("application/json;q=0.01", True, False),
        ("application/jsonx, xtext/event-stream", False, False),
    ],
)
def test_accept_must_allow_the_response(accept: str | None, json: bool, stream: bool) -> None:
    """A POST needs a client that takes JSON, a GET one that takes events; else it is a 406."""
    table = {} if accept is None else {b"accept": accept.encode()}
    post = {**table, b"content-type": b"application/json"}

    if json:
        assert stream == check_post_headers(post[b"content-type"], post.get(b"accept", b"*/*"))
    else:
        with pytest.raises(HttpRejected, match="must list application/json") as caught:
            check_post_headers(post[b"content-type"], post.get(b"accept", b"*/*"))
        assert caught.value.status == 406
    if stream:
        check_get_headers(table)
    else:
        with pytest.raises(HttpRejected, match="text/event-stream") as caught:
            check_get_headers(table)
        assert caught.value.status == 406


@pytest.mark.parametrize(
    "media", ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"]
)
def test_http_body_is_json(media: str) -> None:
    """A POST carries `application/json`, with any parameter."""
    assert check_post_headers(media.encode(), b"*/*")


@pytest.mark.parametrize(
    "media",
    [None, "", "text/plain", "application/jsonp", "text/plain, application/json", "application/*"],
)
def test_other_media_types_are_rejected(media: str | None) -> None:
    """Any other body is a 415: a page may send it without a preflight (CORS)."""
    table = {} if media is None else {b"content-type": media.encode()}

    with pytest.raises(
        HttpRejected, match=re.escape(f"not {'(none)' if media is None else media}")
    ) as caught:
        check_post_headers(table.get(b"content-type", b""), b"*/*")

    assert caught.value.status == 415


def test_cors_exposes_the_headers_of_a_client() -> None:
    """An answer to a page names the page, and the headers it may read."""
    headers = dict(cors_headers(b"https://a.example"))

    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert headers[b"vary"] == b"origin"
    exposed = headers[b"access-control-expose-headers"].split(b", ")
    assert {b"mcp-session-id", b"www-authenticate", b"retry-after"} <= set(exposed)


def test_preflight_allows_headers_of_all_revisions() -> None:
    """The methods and headers of all revisions are allowed; of `Mcp-Param-*`, those requested."""
    requested = (
        b"Content-Type, Mcp-Param-Region,mcp-param-Zone_1 , x-mcp-param-a, x-other, mcp-param-"
    )
    headers = dict(
        preflight_headers({b"access-control-request-headers": requested}, b"https://a.example")
    )

    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert set(headers[b"access-control-allow-methods"].split(b", ")) == {
        b"GET",
        b"POST",
        b"DELETE",
        b"OPTIONS",
    }
    assert set(headers[b"access-control-allow-headers"].split(b", ")) == {
        b"accept",
        b"authorization",
        b"content-type",
        b"dpop",
        b"last-event-id",
        b"mcp-method",
        b"mcp-name",
        b"mcp-param-region",
        b"mcp-param-zone_1",
        b"mcp-protocol-version",
        b"mcp-session-id",
    }


def test_http_preflight_repeats_header_names_only() -> None:
    """Text that is not a header name is not echoed."""
    requested = b"mcp-param-a b, mcp-param-\xff, mcp-param-a:b"

    headers = dict(preflight_headers({b"access-control-request-headers": requested}, b"null"))

    assert b"mcp-param" not in headers[b"access-control-allow-headers"]
