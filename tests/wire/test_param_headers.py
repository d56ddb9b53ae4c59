"""Headers that mirror the body: 2026-07-28, Streamable HTTP, "Request Metadata"."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.errors import HeaderMismatch
from genmcp.wire.param_headers import (
    HeaderRule,
    check_method,
    check_name,
    check_params,
    decode_value,
    encode_value,
)

REGION = HeaderRule(b"mcp-param-region", ("region",), "string")

TABLE = [
    ("us-west1", "us-west1"),
    ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    (" padded ", "=?base64?IHBhZGRlZCA=?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
]


def wrapped(raw: bytes) -> bytes:
    return b"=?base64?" + base64.b64encode(raw) + b"?="


@pytest.mark.parametrize(
    ("value", "header"),
    [
        *TABLE,
        ("", ""),
        ("a b\tc", "a b\tc"),
        ("\ttab", "=?base64?CXRhYg==?="),
        ("\x7f", "=?base64?fw==?="),
        ("=?base64?x", "=?base64?x"),
        ("x?=", "x?="),
        ("=?BASE64?eA==?=", "=?BASE64?eA==?="),
    ],
)
def test_mirror_encodes_as_the_specification_shows(value: str, header: str) -> None:
    """The table of "Value Encoding", and cases that the text leaves open."""
    assert header == encode_value(value)
    assert value == decode_value("Mcp-Name", header.encode("ascii"))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_mirror_decodes_what_it_encodes(value: str) -> None:
    """Every text has a header of visible characters and blanks, and is restored."""
    header = encode_value(value)

    assert header.isascii()
    assert not header or (header.isprintable() or "\t" in header)
    assert header == header.strip()
    assert value == decode_value("Mcp-Name", header.encode("ascii"))


@pytest.mark.parametrize(
    "raw",
    [
        b"=?base64?SGVsbG8?=",
        b"=?base64?SGVsbG8==?=",
        b"=?base64?SG=VsbG8=?=",
        b"=?base64?=?=",
        b"=?base64?A===?=",
        b"=?base64?SGVs bG8=?=",
        b"=?base64?SGVs-G8_?=",
        b"=?base64?SGVs!!!!?=",
        b"=?base64?SGVsbG8=SGVsbG8=?=",
        wrapped(b"\xff"),
        wrapped("\ud800".encode("utf-8", "surrogatepass")),
    ],
)
def test_invalid_base64_is_rejected(raw: bytes) -> None:
    """Bad padding, bad characters and bad UTF-8 are refused, not guessed at."""
    with pytest.raises(HeaderMismatch, match="Mcp-Param-X is not valid Base64"):
        decode_value("Mcp-Param-X", raw)


@pytest.mark.parametrize("raw", ["é".encode(), b"\xe9", b"a\nb", b"a\0b", b"\x7f"])
def test_header_value_is_visible_ascii(raw: bytes) -> None:
    """A header value is visible ASCII, spaces and tabs (RFC 9110, "Field Values")."""
    with pytest.raises(HeaderMismatch, match="outside visible ASCII"):
        decode_value("Mcp-Param-X", raw)
    with pytest.raises(HeaderMismatch, match="outside visible ASCII"):
        check_name({b"mcp-name": raw}, raw.decode("latin-1"))


@pytest.mark.parametrize(
    "literal", ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?Base64?SGVsbG8=?=", "=?base64?="]
)
def test_incomplete_markers_are_plain_text(literal: str) -> None:
    """The markers are complete, in lower case and at both ends; otherwise it is plain text."""
    assert literal == decode_value("Mcp-Name", literal.encode("ascii"))


def test_mirror_markers_may_hold_nothing() -> None:
    """An encoded empty text is empty."""
    assert decode_value("Mcp-Name", b"=?base64??=") == ""


@pytest.mark.parametrize("raw", [b"  add", b"add\t ", b" =?base64?YWRk?=\t"])
def test_mirror_ignores_blanks_around_a_value(raw: bytes) -> None:
    """Blanks around a field value do not belong to it, whether the server strips them or not."""
    check_name({b"mcp-name": raw}, "add")


def test_method_header_must_agree() -> None:
    """`Mcp-Method` is the method, letter by letter ("Case Sensitivity")."""
    check_method({b"mcp-method": b"tools/list"}, "tools/list")

    for headers, match in (
        ({}, "the Mcp-Method header is missing"),
        ({b"mcp-method": b"TOOLS/LIST"}, "'TOOLS/LIST' does not match body value 'tools/list'"),
        ({b"mcp-method": b""}, "'' does not match"),
        ({b"mcp-method": b"\xff"}, "outside visible ASCII"),
    ):
        with pytest.raises(HeaderMismatch, match=match) as caught:
            check_method(headers, "tools/list")
        assert (caught.value.code, caught.value.status) == (-32020, 400)


def test_mirror_method_is_never_encoded() -> None:
    """Only `Mcp-Name` and `Mcp-Param-*` permit Base64 ("Server Validation")."""
    with pytest.raises(HeaderMismatch, match="does not match"):
        check_method({b"mcp-method": wrapped(b"tools/list")}, "tools/list")


@pytest.mark.parametrize(("name", "header"), TABLE)
def test_mirror_name_is_decoded_before_it_is_compared(name: str, header: str) -> None:
    """ "Server Validation": an encoded name represents its decoded form."""
    check_name({b"mcp-name": header.encode("ascii")}, name)

    with pytest.raises(HeaderMismatch, match=r"Mcp-Name header value .* does not match"):
        check_name({b"mcp-name": header.encode("ascii")}, name + "x")


def test_name_header_is_required() -> None:
    """A required header that is missing is a mismatch."""
    with pytest.raises(HeaderMismatch, match="the Mcp-Name header is missing"):
        check_name({}, "add")


def test_mirror_name_that_looks_encoded_must_be_encoded() -> None:
    """A name that is like the pattern is not compared as it is: a proxy would decode it."""
    with pytest.raises(HeaderMismatch):
        check_name({b"mcp-name": b"=?base64?YWRk?="}, "=?base64?YWRk?=")


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("Hello", b"Hello"),
        ("Hello", b"=?base64?SGVsbG8=?="),
        ("42", b"42"),
        ("", b""),
        (42, b"42"),
        (42, b"42.0"),
        (42.0, b"42"),
        (-7, b"-7"),
        (-7, b"-7.00"),
        (0, b"-0"),
        (1200, b"1.2e3"),
        (1200, b"1200E-0"),
        (42, b"=?base64?NDI=?="),
        (2**53 + 1, b"9007199254740993"),
        (10**300, b"1" + b"0" * 300),
        (True, b"true"),
        (False, b"false"),
    ],
)
def test_mirror_argument_that_agrees_passes(value: Any, header: bytes) -> None:
    """Text compares as text, numbers as numbers, and booleans are in lower case."""
    check_params({b"mcp-param-region": header}, [REGION], {"region": value})


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("Hello", b"hello"),
        ("42", b"42.0"),
        ("true", b"True"),
        (42, b"43"),
        (42, b"4_2"),
        (42, b"+42"),
        (42, b"0x2a"),
        (42, b""),
        (42, b"fortytwo"),
        (42, b"nan"),
        (42, b"--42"),
        (42, b"1e99999999999999999999"),
        (2**53 + 1, b"9007199254740992"),
        (2**53 + 1, b"9007199254740992.0"),
        (42, b"9" * 5000),
        (1, b"true"),
        (0, b"false"),
        (True, b"1"),
        (True, b"True"),
        (False, b"true"),
        (["a"], b"a"),
        ({"a": 1}, b'{"a":1}'),
    ],
)
def test_argument_that_differs_is_rejected(value: Any, header: bytes) -> None:
    """A header must match the body, or the call is rejected."""
    with pytest.raises(HeaderMismatch, match="Mcp-Param-Region does not match the body value"):
        check_params({b"mcp-param-region": header}, [REGION], {"region": value})


def test_argument_without_its_header_is_rejected() -> None:
    """ "Client omits header but value is in body": the server must reject the request."""
    with pytest.raises(HeaderMismatch, match=r"Mcp-Param-Region header is missing.*/region"):
        check_params({}, [REGION], {"region": "a"})


@pytest.mark.parametrize("arguments", [{}, {"region": None}, None, [], "a"])
def test_absent_argument_has_no_header(arguments: Any) -> None:
    """Neither for null nor for an absent argument is a header expected, and none is right."""
    check_params({}, [REGION], arguments)

    with pytest.raises(HeaderMismatch, match="the body has no value for it"):
        check_params({b"mcp-param-region": b"a"}, [REGION], arguments)


def test_mirror_argument_is_found_at_its_path() -> None:
    """ "Schema Extension": nested properties are read along the chain of their keys."""
    rule = HeaderRule(b"mcp-param-zone", ("place", "zone"), "string")
    headers = {b"mcp-param-zone": b"b"}

    check_params(headers, [rule], {"place": {"zone": "b"}, "zone": "c"})
    check_params({}, [rule], {"place": "b"})
    check_params({}, [rule], {"place": {}})

    with pytest.raises(HeaderMismatch, match="mirrors /place/zone"):
        check_params({}, [rule], {"place": {"zone": "b"}})


def test_mirror_checks_every_rule_and_no_other_header() -> None:
    """Each annotated argument is checked; other headers are ignored."""
    zone = HeaderRule(b"mcp-param-zone", ("zone",), "integer")
    headers = {b"mcp-param-region": b"a", b"mcp-param-zone": b"1", b"mcp-param-else": b"x"}

    check_params(headers, [REGION, zone], {"region": "a", "zone": 1, "else": "y"})

    with pytest.raises(HeaderMismatch, match="Mcp-Param-Zone"):
        check_params(headers, [REGION, zone], {"region": "a", "zone": 2})


def test_invalid_characters_of_a_header_are_rejected() -> None:
    """Servers must reject a recognized header with invalid characters."""
    with pytest.raises(HeaderMismatch, match="outside visible ASCII"):
        check_params({b"mcp-param-region": "é".encode()}, [REGION], {"region": "é"})
