"""The front matter of skills: as other parsers of YAML read it, and hostile texts in no time."""

import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from genmcp.extensions.front_matter import FrontMatterError, read_front_matter

SKILL = """\
name: pdf-forms
description: Fills the forms
  of a file.

  Use it for forms.
license: Apache-2.0 # of the texts
metadata:
  version: "1.0"
  author: 'it''s me'
  tags:
  - a
  - b: c
    d: e
  - - x
    - y
  -
    z: 1
count: -12
ratio: 1.5e+3
draft: true
empty:
nothing: ~
url: http://example.com/a#b
allowed-tools: Bash(git:*) Read
flow: [a, "b, c", {d: e, f: [1, 2]}, ]
mapping: {a: 1, "b": two words, c: }
literal: |
  one
    two

  three
folded: >-
  one
  two

  three
    four
  five
quoted: "one
  two

  three \\u00e9 \\n"
"a: b": '#no'
"""


def read(text: str) -> Any:
    return read_front_matter(f"---\n{text}\n---\nbody".encode())


def test_front_matter_is_read_as_yaml() -> None:
    """Every form that a skill may use, as PyYAML reads it; with the line ends of Windows, too."""
    expected = yaml.safe_load(SKILL)

    assert read(SKILL) == expected
    assert read_front_matter(f"\ufeff---\n{SKILL}---".replace("\n", "\r\n").encode()) == expected


words = st.text(st.sampled_from("ab 1:#-'\"[]{},&*!|>%@`?~\n\\é"), max_size=12)
values = st.recursive(
    words | st.booleans() | st.none() | st.integers(-999, 999),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(words, values, max_size=4), st.booleans())
def test_front_matter_written_by_others_is_read(value: dict[str, Any], flow: bool) -> None:
    """All that PyYAML writes of JSON values."""
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True, width=40)

    assert read(text) == value


@given(st.text(st.sampled_from("ab :#-'\"[]{},&|>\n"), max_size=40))
def test_front_matter_that_is_no_yaml_is_an_error(text: str) -> None:
    """No text raises anything else; what is read is JSON."""
    with suppress(FrontMatterError):
        json.dumps(read(text))


@pytest.mark.parametrize(
    "text",
    [
        *("a: &x b", "a: *x", "a: !!int 3", "a: b: c", "a: [1, 2", "a: 1\na: 2", "a:\n\tb: 1"),
        *("? [a]\n: b", "- a", 'a: "x', "a: 'x", "a", "a: @x", "a: [x y z", "a:\n   b: 1\n  c: 2"),
        *("a: .inf", "a: .nan", "a: 1e999", 'a: "\\q"', 'a: "\\ud800"', "%YAML 1.2", "a: {b: 1"),
        *("a: {b c: 1, b c: 2}", "a: [x] y", "a: |x\n b", "a: [&x b]", "{a: 1", "a: b\n--- c"),
        *("a: |\nb", "'a: b", "\ta: b", "&x a: b"),
    ],
)
def test_front_matter_is_refused(text: str) -> None:
    """Aliases, tags, duplicates, and what is no YAML or no JSON."""
    with pytest.raises(FrontMatterError):
        read(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"name: a", b"---\nname: a", b"--- a\n---\n", b"---\na: \xff\n---\n", b"----\na: b\n---"],
)
def test_front_matter_needs_its_delimiters(data: bytes) -> None:
    """A file without front matter, without its end, or that is not UTF-8."""
    with pytest.raises(FrontMatterError):
        read_front_matter(data)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 60_000,
        "a: " + "- " * 30_000,
        "- " * 30_000,
        "a" + " " * 60_000,
        "\n".join(" " * i + f"k{i}:" for i in range(300)),
        "a: " + "x\n " * 20_000,
        'a: "' + "\n " * 30_000,
        "a: " + ":" * 60_000,
        "a: {" + "a:" * 30_000,
        "k: >\n" + " x\n\n" * 15_000,
        '"' * 60_000,
        "a: 'x\n" + " '\n" * 20_000,
        "a: " + "1" * 60_000,
    ],
)
def test_front_matter_costs_no_more_than_its_size(text: str) -> None:
    """Deep nesting and long lines of hostile servers; a quadratic reader would take minutes."""
    with suppress(FrontMatterError):
        read(text)
