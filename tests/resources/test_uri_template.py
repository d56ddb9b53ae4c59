"""URI templates: which are accepted, and the variables that a URI has by them."""

from collections.abc import Callable
from time import thread_time
from typing import Any

import pytest
import uri_template
from hypothesis import given
from hypothesis import strategies as st

from genmcp.errors import ConfigurationError
from genmcp.uri_template import MAX_URI_LENGTH, UriTemplate


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "}",
        "{}",
        "{x",
        "x}",
        "{{x}}",
        "{x y}",
        "{x,}",
        "{=x}",
        "{!x}",
        "{@x}",
        "{|x}",
        "{x:0}",
        "{x:10000}",
        "{x*:3}",
        "{.}",
        "{a..b}",
        "{é}",
        "a b",
        "a\0",
        "50%",
        "%zz",
        '"',
        "a\\b",
        5,
        "x" * 1025,
    ],
)
def test_invalid_template_is_rejected(text: Any) -> None:
    """RFC 6570, section 2; the length of a template is bounded, since it may be a peer's."""
    with pytest.raises(ConfigurationError, match=r"^(a )?URI template"):
        UriTemplate(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a}{b}", "{a} may contain the beginning of {b}"),
        ("{name}{.type}", "{name} may contain the beginning of {.type}"),
        ("{owner}-{repo}", "{owner} may contain the beginning of '-'"),
        ("{+folder}/{name}", "{+folder} may contain the beginning of '/'"),
        ("{/x}{/y}", "{/x} may contain the beginning of {/y}"),
        ("{/x*}/{y}", "{/x*} may contain the beginning of '/'"),
        ("{a}{?b}c{d}", "{a} may contain the beginning of 'c'"),
        ("{a}%2F{b}", "{a} may contain the beginning of '%2F'"),
        ("{?x}{&y}", "{?x} may contain the beginning of {&y}"),
        ("{;x}{;y}", "{;x} may contain the beginning of {;y}"),
        ("{?x}{y}", "{?x} may contain the beginning of {y}"),
        ("{#x}{?y}", "{#x} may contain the beginning of {?y}"),
        ("{+a}{+b}", "{+a} may contain the beginning of {+b}"),
        ("{+a,b}", "a value may contain ','"),
        ("{/a*,b}", "a value may contain '/'"),
        ("{+a*}", "a value may contain ','"),
        ("{.a,b}", "a value may contain '.'"),
        ("{.a*}", "a value may contain '.'"),
        ("{x}/{x}", "x occurs twice"),
    ],
)
def test_ambiguous_template_is_rejected(text: str, reason: str) -> None:
    """A URI could have several readings; the error names the part, and what to write instead."""
    with pytest.raises(ConfigurationError) as caught:
        UriTemplate(text)

    assert reason in str(caught.value)
    assert "write one variable" in str(caught.value) or "use two names" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "uri", "found"),
    [
        ("docs://{+path}", "docs://a/b%20c.md", {"path": "a/b c.md"}),
        ("docs://{+path}", "docs://a?b#c", {"path": "a?b#c"}),
        ("docs://{+path}{?page}", "docs://a/b?page=2", {"path": "a/b", "page": "2"}),
        ("docs://{+path}{#part}", "docs://a/b#c?d", {"path": "a/b", "part": "c?d"}),
        ("docs://{+path}?at={time}", "docs://a/b?at=7", {"path": "a/b", "time": "7"}),
        ("docs://{+path}/edit", "docs://a/b/edit", {"path": "a/b"}),
        ("docs://{+path}/edit", "docs://edit", None),
        ("docs://{name}", "docs://a/b", None),
        ("docs://{name}", "docs://", {"name": ""}),
        ("docs://{name}", "DOCS://a", None),
        ("docs://{name}", "docs:/", None),
        ("{scheme}://x", "a://x", {"scheme": "a"}),
        ("a{/path*}", "a/b/c%2Fd", {"path": ["b", "c/d"]}),
        ("a{/path*}", "a", {"path": []}),
        ("a{/path*}", "a/", {"path": [""]}),
        ("a/{path*}", "a/b,c", {"path": ["b", "c"]}),
        ("a/{path*}", "a/", {"path": []}),
        ("a/{first,rest*}", "a/b,c,d", {"first": "b", "rest": ["c", "d"]}),
        ("a{?q,page}", "a", {}),
        ("a{?q,page}", "a?page=2&q=x%26y", {"q": "x&y", "page": "2"}),
        ("a{?q,page}", "a?q", {"q": ""}),
        ("a{?q,page}", "a?q=1&q=2", None),
        ("a{?q,page}", "a?other=1", None),
        ("a{?q,page}", "a?", None),
        ("a{?tag*}", "a?tag=x&tag=y", {"tag": ["x", "y"]}),
        ("a{?tag*}", "a", {"tag": []}),
        ("a{?q}{#part}", "a?q=1#two", {"q": "1", "part": "two"}),
        ("a{;v}/b", "a;v=1/b", {"v": "1"}),
        ("{?x}{/y}z", "?x=1/2z", {"x": "1", "y": "2"}),
        ("{name}.json", "a.json.json", {"name": "a.json"}),
        ("{name}.json", ".json", {"name": ""}),
        ("{name}.json", "json", None),
        ("a{.type}", "a.tar.gz", {"type": "tar.gz"}),
        ("{/x}/b", "/a/b", {"x": "a"}),
        ("{/x}/b", "/b", {}),
        ("{/x,y}", "/1/2", {"x": "1", "y": "2"}),
        ("{/x,y}", "/1", {"x": "1"}),
        ("{/x,y}", "/1/2/3", None),
        ("{x},{y}", "1,2", {"x": "1", "y": "2"}),
        ("{a}5", "%255", {"a": "%"}),
        ("{a}5", "%25", None),
        ("{a}%2F", "b%2F", {"a": "b"}),
        ("{x:1}", "ab", None),
        ("{x:1}", "%C3%A9", {"x": "é"}),
        ("é/{x}", "%C3%A9/1", {"x": "1"}),
        ("%c3%a9/{x}", "%c3%a9/1", {"x": "1"}),
        ("{a.b,%20c}", "1,2", {"a.b": "1", "%20c": "2"}),
        ("{x}", "%", None),
        ("{x}", "%4", None),
        ("{x}", "%zz", None),
        ("{x}", "%2541", {"x": "%41"}),
        ("{x}", "%C0%AF", None),  # an overlong "/"
        ("{x}", "%ff", None),
        ("{x}", "é", None),
        ("{x}", "a b", None),
        ("{x}", "\ud800", None),
        ("ab", "ab", {}),
        ("aba", "aba", {}),
        ("ab{x}ba", "aba", None),
        ("", "", {}),
        ("", "a", None),
    ],
)
def test_template_matches(template: str, uri: str, found: dict[str, Any] | None) -> None:
    """Values are percent-decoded once; None for a URI that no values expand to."""
    assert UriTemplate(template).match(uri) == found


TEMPLATES = [
    "x://{a}/{b}",
    "x://{a}{/c*}{?b}",
    "{a,b}",
    "{c*}/",
    "x://{a}{;b}{?c*}",
    "a{?a,b,c*}",
    "a{/a,b}",
    "?q=1{&a,b}",
    "{a}@{b}!",
    "{a},{b}.json",
    "w{.a}/{b}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@given(data=st.data())
def test_matching_reverses_expansion(template: str, data: st.DataObject) -> None:
    """Every URI that another implementation of RFC 6570 makes of a template has its values."""
    made = UriTemplate(template)
    lists = st.lists(st.text(min_size=1, max_size=5), max_size=4)
    values = {
        name: data.draw(lists if f"{name}*" in template else st.text(max_size=8))
        for name in made.variables
    }
    uri = uri_template.expand(template, **values)

    assert uri is not None
    assert made.match(uri) == values


@given(uri=st.text("ab.-/%25?&=#,;é", max_size=20))
@pytest.mark.parametrize("template", [*TEMPLATES, "{+a}{?b}", "a{/b*}{?c,d*}", "{#c}", "{?a}"])
def test_template_matches_any_text_or_none(template: str, uri: str) -> None:
    """No URI of a client raises an error; values are texts and lists of texts."""
    found = UriTemplate(template).match(uri)

    for value in (found or {}).values():
        assert all(isinstance(each, str) for each in ([value] if isinstance(value, str) else value))


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{a}/{b}/{c}/{d}!", lambda size: "/" * size),
        ("{+a}x!", lambda size: "x" * size),
        ("a{/b*}{?c*}!", lambda size: "a" + "/b" * (size // 2)),
        ("{?a*}#", lambda size: "?" + "a=1&" * (size // 4)),
        ("{a}/%25{?b}!", lambda size: "%25" * (size // 3)),
    ],
)
def test_match_takes_linear_time(template: str, uri: Callable[[int], str]) -> None:
    """A hostile URI of the maximal length is rejected within milliseconds."""
    made = UriTemplate(template)
    text = uri(MAX_URI_LENGTH - 1)
    began = thread_time()

    assert made.match(text) is None
    assert thread_time() - began < 0.2


def test_longer_uri_does_not_match() -> None:
    """`MAX_URI_LENGTH` bounds the time of a match."""
    template = UriTemplate("x:{+a}")
    longest = "x:" + "a" * (MAX_URI_LENGTH - 2)

    assert template.match(longest) == {"a": longest[2:]}
    assert template.match(longest + "a") is None


def test_template_has_text_variables_and_prefix() -> None:
    """A repository lists the text, and registers the prefix."""
    made = UriTemplate("docs://{a}/{b:3}{?d,c*}")

    assert (made.prefix, made.variables) == ("docs://", ("a", "b", "d", "c"))
    assert (UriTemplate("{a}x").prefix, UriTemplate("").variables) == ("", ())
    assert repr(made) == "UriTemplate('docs://{a}/{b:3}{?d,c*}')"
    assert UriTemplate(made.text) == made != UriTemplate("docs://")
    assert len({made, UriTemplate(made.text)}) == 1
