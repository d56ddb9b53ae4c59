"""URI templates: RFC 6570's own examples, and the way back from a URI."""

import re
from collections.abc import Callable
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.errors import ConfigurationError, ContractError
from genmcp.uri_template import MAX_URI_LENGTH, UriTemplate

pytestmark = pytest.mark.slow

# RFC 6570, section 3.2.
VALUES: dict[str, Any] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

# RFC 6570, sections 3.2.1 to 3.2.9; of section 1.2 what is not among them.
EXAMPLES = """
{count}              one,two,three
{count*}             one,two,three
{/count}             /one,two,three
{/count*}            /one/two/three
{;count}             ;count=one,two,three
{;count*}            ;count=one;count=two;count=three
{?count}             ?count=one,two,three
{?count*}            ?count=one&count=two&count=three
{&count*}            &count=one&count=two&count=three
{var}                value
{hello}              Hello%20World%21
{half}               50%25
O{empty}X            OX
O{undef}X            OX
{x,y}                1024,768
{x,hello,y}          1024,Hello%20World%21,768
?{x,empty}           ?1024,
?{x,undef}           ?1024
?{undef,y}           ?768
{var:3}              val
{var:30}             value
{list}               red,green,blue
{list*}              red,green,blue
{keys}               semi,%3B,dot,.,comma,%2C
{keys*}              semi=%3B,dot=.,comma=%2C
{+var}               value
{+hello}             Hello%20World!
{+half}              50%25
{base}index          http%3A%2F%2Fexample.com%2Fhome%2Findex
{+base}index         http://example.com/home/index
O{+empty}X           OX
O{+undef}X           OX
{+path}/here         /foo/bar/here
here?ref={+path}     here?ref=/foo/bar
up{+path}{var}/here  up/foo/barvalue/here
{+x,hello,y}         1024,Hello%20World!,768
{+path,x}/here       /foo/bar,1024/here
{+path:6}/here       /foo/b/here
{+list}              red,green,blue
{+list*}             red,green,blue
{+keys}              semi,;,dot,.,comma,,
{+keys*}             semi=;,dot=.,comma=,
{#var}               #value
{#hello}             #Hello%20World!
{#half}              #50%25
foo{#empty}          foo#
foo{#undef}          foo
{#x,hello,y}         #1024,Hello%20World!,768
{#path,x}/here       #/foo/bar,1024/here
{#path:6}/here       #/foo/b/here
{#list}              #red,green,blue
{#list*}             #red,green,blue
{#keys}              #semi,;,dot,.,comma,,
{#keys*}             #semi=;,dot=.,comma=,
{.who}               .fred
{.who,who}           .fred.fred
{.half,who}          .50%25.fred
www{.dom*}           www.example.com
X{.var}              X.value
X{.var:3}            X.val
X{.empty}            X.
X{.undef}            X
X{.list}             X.red,green,blue
X{.list*}            X.red.green.blue
X{.keys}             X.semi,%3B,dot,.,comma,%2C
X{.keys*}            X.semi=%3B.dot=..comma=%2C
X{.empty_keys}       X
X{.empty_keys*}      X
{/who}               /fred
{/who,who}           /fred/fred
{/half,who}          /50%25/fred
{/who,dub}           /fred/me%2Ftoo
{/var}               /value
{/var,empty}         /value/
{/var,undef}         /value
{/var,x}/here        /value/1024/here
{/var:1,var}         /v/value
{/list}              /red,green,blue
{/list*}             /red/green/blue
{/list*,path:4}      /red/green/blue/%2Ffoo
{/keys}              /semi,%3B,dot,.,comma,%2C
{/keys*}             /semi=%3B/dot=./comma=%2C
{;who}               ;who=fred
{;half}              ;half=50%25
{;empty}             ;empty
{;hello:5}           ;hello=Hello
{;v,empty,who}       ;v=6;empty;who=fred
{;v,bar,who}         ;v=6;who=fred
{;x,y}               ;x=1024;y=768
{;x,y,empty}         ;x=1024;y=768;empty
{;x,y,undef}         ;x=1024;y=768
{;list}              ;list=red,green,blue
{;list*}             ;list=red;list=green;list=blue
{;keys}              ;keys=semi,%3B,dot,.,comma,%2C
{;keys*}             ;semi=%3B;dot=.;comma=%2C
{?who}               ?who=fred
{?half}              ?half=50%25
{?x,y}               ?x=1024&y=768
{?x,y,empty}         ?x=1024&y=768&empty=
{?x,y,undef}         ?x=1024&y=768
{?var:3}             ?var=val
{?list}              ?list=red,green,blue
{?list*}             ?list=red&list=green&list=blue
{?keys}              ?keys=semi,%3B,dot,.,comma,%2C
{?keys*}             ?semi=%3B&dot=.&comma=%2C
{&who}               &who=fred
{&half}              &half=50%25
?fixed=yes{&x}       ?fixed=yes&x=1024
{&x,y,empty}         &x=1024&y=768&empty=
{&x,y,undef}         &x=1024&y=768
{&var:3}             &var=val
{&list}              &list=red,green,blue
{&list*}             &list=red&list=green&list=blue
{&keys}              &keys=semi,%3B,dot,.,comma,%2C
{&keys*}             &semi=%3B&dot=.&comma=%2C
{?empty_keys*}       -
map?{x,y}            map?1024,768
"""
TABLE = [line.split() for line in EXAMPLES.strip().splitlines()]


@pytest.mark.parametrize(("template", "uri"), TABLE)
def test_template_expands_as_the_rfc_says(template: str, uri: str) -> None:
    """Every example of RFC 6570, section 3.2."""
    assert uri.strip("-") == UriTemplate(template).expand(VALUES)


@pytest.mark.parametrize(("template", "uri"), TABLE)
def test_template_finds_what_expands_to_the_same_uri(template: str, uri: str) -> None:
    """What an example expands to matches, and expands again; lists and mappings need not."""
    made = UriTemplate(template)
    found = made.match(uri.strip("-"))

    composite = any(isinstance(VALUES.get(name), list | dict) for name in made.variables)
    if found is not None:
        assert uri.strip("-") == made.expand(found)
    else:
        assert composite


@pytest.mark.parametrize(
    ("template", "values", "uri"),
    [
        ("é{x}", {"x": "ü"}, "%C3%A9%C3%BC"),
        ("%c3%a9{+x}", {"x": "%41%"}, "%c3%a9%41%25"),
        ("{x}{y}", {"x": 7, "y": -1.5}, "7-1.5"),
        ("{x:2}", {"x": "ünï"}, "%C3%BCn"),
        ("{?x*}", {"x": {"a": "", "b": None}}, "?a="),
        ("{;x*}", {"x": {"a": ""}}, ";a"),
        ("{/x*}", {"x": ["a", None, "b"]}, "/a/b"),
        ("{/x}", {"x": [None]}, ""),
        ("{a.b,%20c}", {"a.b": "1", "%20c": "2"}, "1,2"),
        ("'{x}'", {"x": "quoted"}, "'quoted'"),
    ],
)
def test_template_expands(template: str, values: dict[str, Any], uri: str) -> None:
    """Text is UTF-8, a number is its digits, what is None in a list or mapping is left out."""
    assert uri == UriTemplate(template).expand(values)


@pytest.mark.parametrize(
    ("template", "value"),
    [("{x}", True), ("{x}", b"bytes"), ("{x}", [[1]]), ("{x:3}", ["abc"]), ("{x}", object())],
)
def test_template_refuses_values_that_do_not_stand_in_a_uri(template: str, value: Any) -> None:
    """Only texts, numbers, and lists and mappings of these expand."""
    with pytest.raises(ContractError, match=r"^x: "):
        UriTemplate(template).expand({"x": value})


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
        "{?x}{&y}",
        "{;x}{;y}",
        "{?x}{y}",
        "{?x}{/y}z",
        5,
    ],
)
def test_template_is_refused_when_it_is_made(text: Any) -> None:
    """What is no template, or tells nothing of where its variables end, is a wrong option."""
    with pytest.raises(ConfigurationError, match=r"^(a )?URI template"):
        UriTemplate(text)


@pytest.mark.parametrize(
    ("template", "uri", "found"),
    [
        ("docs://{+path}", "docs://a/b%20c.md", {"path": "a/b c.md"}),
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
        ("{name}{.type}", "a.tar.gz", {"name": "a", "type": "tar.gz"}),
        ("{owner}-{repo}", "my-own-repo", {"owner": "my", "repo": "own-repo"}),
        ("{+folder}/{name}", "a/b/c", {"folder": "a/b", "name": "c"}),
        ("{name}.json", "a.json.json", {"name": "a.json"}),
        ("{/x}{/y}", "/1", {"x": "1"}),
        ("{/x,y}", "/1/2", {"x": "1", "y": "2"}),
        ("{a}{b}", "xyz", {"a": "", "b": "xyz"}),
        ("{a}5{b}", "%255", {"a": "%", "b": ""}),
        ("{a}5{b}", "%25x", None),
        ("{x}/{x}", "1/1", {"x": "1"}),
        ("{x}/{x}", "1/2", None),
        ("{x:1}/{x:3}/{x}", "a/abc/abcd", {"x": "abcd"}),
        ("{x:1}/{x:3}", "a/abc", {"x": "abc"}),
        ("{x:1}/{x}", "a/bcd", None),
        ("{x:1}", "ab", None),
        ("{x:1}", "%C3%A9", {"x": "é"}),
        ("é/{x}", "%C3%A9/1", {"x": "1"}),
        ("{x}", "%", None),
        ("{x}", "%4", None),
        ("{x}", "%zz", None),
        ("{x}", "%2541", {"x": "%41"}),
        ("{x}", "%C0%AF", None),  # an overlong "/"
        ("{x}", "%ff", None),
        ("{x}", "é", None),
        ("{x}", "a b", None),
        ("{x}", "\ud800", None),
        ("", "", {}),
        ("", "a", None),
    ],
)
def test_template_matches(template: str, uri: str, found: dict[str, Any] | None) -> None:
    """The variables of a URI, percent-decoded once; or None if it is none of the template's."""
    assert found == UriTemplate(template).match(uri)


TEXTS = st.text(max_size=8)
PLAIN = st.text("abcXYZ019_~é/%?& ", max_size=8)


@pytest.mark.parametrize(
    "template",
    [
        "x://{a}/{b}",
        "x://{a}{/c*}{?b}",
        "{a,b}",
        "{c*}/",
        "x://{a}{;b}{?c*}",
        "a{?a,b,c*}",
        "a{/a,b}",
        "?q=1{&a,b}",
        "{a}@{b}!",
    ],
)
@given(data=st.data())
def test_template_gives_back_what_it_was_expanded_with(template: str, data: st.DataObject) -> None:
    """Where characters tell the parts of a URI apart, matching undoes expanding."""
    made = UriTemplate(template)
    lists = st.lists(st.text(min_size=1, max_size=5), max_size=4)
    values = {
        name: data.draw(lists if f"{name}*" in template else TEXTS) for name in made.variables
    }

    assert values == made.match(made.expand(values))


@pytest.mark.parametrize(
    "template",
    [
        "{a}.{b}-{c}",
        "{+a}/{b}{.c}",
        "{a}{b}",
        "{+a}{b}x{+c}",
        "{/a*,b}{.c*}",
        "{+a,b}{#c}",
        "{#a,b}",
        "{a}b{c}b",
        "{.a*}{/b}{.c}{?d,e*}{#f}",
        "a%25{a}5{+b*}",
    ],
)
@given(data=st.data())
def test_template_matches_whatever_it_expands_to(template: str, data: st.DataObject) -> None:
    """However many readings a URI has, one is found, and it expands to the same URI."""
    made = UriTemplate(template)
    lists = st.lists(PLAIN, max_size=3)
    values = {
        name: data.draw(lists if f"{name}*" in template else st.none() | PLAIN)
        for name in made.variables
    }
    # An escaped value of {+x} stays as it is, so that its text is not what was given.
    uri = made.expand({name: unescaped(value) for name, value in values.items()})
    found = made.match(uri)

    assert found is not None
    assert uri == made.expand(found)


def unescaped(value: Any) -> Any:
    if isinstance(value, list):
        return [unescaped(each) for each in value]
    return value and re.sub("%", "", value)


@given(uri=st.text("ab.-/%25?&=#,;é", max_size=20))
@pytest.mark.parametrize(
    "template", ["{a}.{b}-{c}", "a{/b*}{?c,d*}", "{+a}/{b}{.c}", "{a}{;b}{#c}", "{?a}"]
)
def test_template_takes_any_text(template: str, uri: str) -> None:
    """Nothing a client sends raises; what matches is texts and lists of texts."""
    found = UriTemplate(template).match(uri)

    for value in (found or {}).values():
        assert all(isinstance(each, str) for each in ([value] if isinstance(value, str) else value))


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{+a}a{+b}a{+c}a{d}x", lambda size: "a" * size),
        ("{a}.{b}.{c}.{d}/", lambda size: "." * size),
        ("a{/b*}{.c*}!", lambda size: "a" + "/." * (size // 2)),
        ("{?a*}#", lambda size: "?" + "a=1&" * (size // 4)),
        ("{a}%25{b}!", lambda size: "%25" * (size // 3)),
    ],
)
def test_template_matches_in_linear_time(template: str, uri: Callable[[int], str]) -> None:
    """A hostile URI of the maximal length is refused within milliseconds, not hours."""
    text = uri(MAX_URI_LENGTH - 1)
    began = thread_time()

    assert UriTemplate(template).match(text) is None
    assert thread_time() - began < 0.2


@pytest.mark.parametrize(
    ("template", "is_compiled"),
    [
        ("a{/b*}{?c,d*}", True),
        ("{a}/{b}{?c}", True),
        ("{;a}/{#c}", True),
        ("{a}&{+b}", True),
        ("{/a,b}#", True),
        ("{a,b}", True),
        ("{a}.{b}", False),
        ("{+a}/{b}", False),
        ("{/a}/b", False),
        ("{/a*,b}", False),
        ("{a}%2F", False),
        ("{+a,b}", False),
    ],
)
@given(uri=st.text("ab.-/%25?&=#,;", max_size=20))
def test_template_pattern_reads_like_the_search(template: str, is_compiled: bool, uri: str) -> None:
    """A template without ambiguous readings is compiled to a pattern, which changes no result."""
    compiled, searching = UriTemplate(template), UriTemplate(template)
    assert (compiled._pattern is not None) is is_compiled

    searching._pattern = None

    assert compiled.match(uri) == searching.match(uri)


def test_template_matches_no_longer_uri() -> None:
    """`MAX_URI_LENGTH` bounds the time of a match."""
    template = UriTemplate("x:{+a}")
    longest = "x:" + "a" * (MAX_URI_LENGTH - 2)

    assert template.match(longest) == {"a": longest[2:]}
    assert template.match(longest + "a") is None


def test_template_tells_its_text_variables_and_prefix() -> None:
    """What a repository needs of it."""
    made = UriTemplate("docs://{a}/{b:3}{?a,c*}")

    assert (made.prefix, made.variables) == ("docs://", ("a", "b", "c"))
    assert (UriTemplate("{a}x").prefix, UriTemplate("").variables) == ("", ())
    assert repr(made) == "UriTemplate('docs://{a}/{b:3}{?a,c*}')"
    assert UriTemplate(made.text) == made != UriTemplate("docs://")
    assert len({made, UriTemplate(made.text)}) == 1
