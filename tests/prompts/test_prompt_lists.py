"""A suite's prompts together: lookup by name, and pages."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from genmcp.channel import Channel
from genmcp.core.request import ClientInfo, PromptRequest
from genmcp.errors import ConfigurationError, ContractError, InvalidParams
from genmcp.prompts.prompt import Prompt, PromptRepo, PromptRoute
from genmcp.prompts.template import PromptTemplate
from genmcp.protocol.prompts import (
    GetPromptRequestParams,
    GetPromptResult,
    PromptDefinition,
)
from genmcp.protocol.revisions.chain import LATEST
from genmcp.suite.collection import PROMPTS, Collection
from tests.support.channels import channel_of

NOWHERE: Any = None  # an unused channel: all hooks here are async


def prompts_of(given: Sequence[object]) -> Collection:
    return Collection(PROMPTS, [PROMPTS.route_of(each) for each in given])


def static(name: str, **attributes: Any) -> PromptTemplate:
    prompt = PromptTemplate(name=name, messages=name)
    for key, value in attributes.items():
        setattr(prompt, key, value)
    return prompt


class Letters(PromptRepo):
    """Some prompts called by letters, in pages of two."""

    def __init__(self, prefix: str, letters: Sequence[str], **attributes: Any) -> None:
        self.prefix = prefix
        self.letters = letters
        self.cursors: list[Any] = []
        for key, value in attributes.items():
            setattr(self, key, value)

    async def list(self, cursor: Any, channel: Channel) -> Any:
        self.cursors.append(cursor)
        start = cursor["from"] if cursor else 0
        page = [PromptDefinition(self.prefix + each) for each in self.letters[start : start + 2]]
        more = start + 2 < len(self.letters)
        return (page, {"from": start + 2}) if more else page

    async def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
        letter = name.removeprefix(self.prefix)
        return f"{letter} {arguments}" if letter in self.letters else None


async def page(prompts: Collection, cursor: str | None = None, size: int = 100) -> Any:
    return await prompts.lists["prompts/list"].page(cursor, NOWHERE, size=size)


async def pages(prompts: Collection, size: int = 100) -> list[list[str]]:
    """Follow the cursors to the end."""
    found: list[list[str]] = []
    cursor: str | None = None
    while True:
        listed = await page(prompts, cursor, size)
        found.append([each.name for each in listed.prompts])
        if (cursor := listed.next_cursor) is None:
            return found


async def got(prompts: Collection, name: str, **arguments: str) -> Any:
    route = prompts.find(name)
    assert route is not None
    request = PromptRequest(
        id=1,
        method="prompts/get",
        params=GetPromptRequestParams(name=name, arguments=arguments or None),
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
        route=route,
    )
    result = await route.handle(request, channel_of(request))
    assert isinstance(result, GetPromptResult)
    (message,) = result.messages
    return message.content.text  # type: ignore[union-attr]


async def test_prompts_are_listed_in_order_and_in_pages() -> None:
    """A page is filled up to its size; it ends where a repository's own page does."""
    prompts = prompts_of(
        [
            static("a"),
            static("b"),
            static("c"),
            Letters("x/", "pqr"),
            Letters("y/", ""),
            static("d"),
        ]
    )

    assert await pages(prompts, size=2) == [["a", "b"], ["c", "x/p"], ["x/q"], ["x/r", "d"]]
    assert await pages(prompts) == [["a", "b", "c", "x/p", "x/q"], ["x/r", "d"]]
    assert repr(prompts) == "<Collection of 6 prompts>"


async def test_page_of_prompts_is_made_once() -> None:
    """Pages of fixed prompts are made once; a repository is listed on demand."""
    letters = Letters("x/", "pqrstu")
    prompts = prompts_of([static("a"), static("b"), letters])

    first = await page(prompts, size=2)
    assert first is await page(prompts, size=2)
    assert letters.cursors == []
    second = await page(prompts, first.next_cursor)
    await page(prompts, second.next_cursor)
    assert letters.cursors == [None, {"from": 2}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], [[]]),
        ([Letters("x/", "")], [[]]),
        ([Letters("x/", ""), Letters("y/", "a")], [["y/a"]]),
        ([static("a"), Letters("x/", "")], [["a"]]),
    ],
)
async def test_empty_repository_has_no_page(given: Any, expected: Any) -> None:
    """An empty repository adds nothing to a list."""
    assert expected == await pages(prompts_of(given))


async def test_first_definition_of_a_prompt_takes_precedence() -> None:
    """An earlier name, or a prefix of it, hides a later one."""
    first, second = static("x/a", title="first"), static("x/a", title="second")
    prompts = prompts_of(
        [
            first,
            second,
            Letters("x/", "ab"),
            static("x/b"),
            static("y"),
            Letters("x/more/", "c"),
            Letters("", "yz"),
        ]
    )

    assert await pages(prompts) == [["x/a", "x/b", "y", "z"]]
    found = prompts.find("x/a")
    assert isinstance(found, PromptRoute)
    assert found.definition.title == "first"
    assert await got(prompts, "x/b") == "b {}"
    assert await got(prompts, "y") == "y"
    assert await got(prompts, "z", k="v") == "z {'k': 'v'}"


async def test_longer_prefix_declared_first_takes_precedence() -> None:
    """The names it serves are not listed by a more general one after it."""
    prompts = prompts_of([Letters("x/y/", "a"), Letters("x/", ["b", "y/a"]), Letters("x", "c")])

    assert await pages(prompts) == [["x/y/a", "x/b", "xc"]]
    assert await got(prompts, "x/y/a") == "a {}"
    assert await got(prompts, "x/b") == "b {}"
    assert await got(prompts, "xc") == "c {}"
    assert None is prompts.find("y")


async def test_prompts_unknown_name_is_not_found() -> None:
    """No prompt has the name, or its repository reports that there is none."""
    prompts = prompts_of([static("a"), Letters("x/", "a")])

    assert None is prompts.find("b")
    with pytest.raises(InvalidParams, match=r"^Unknown prompt: x/b$"):
        await got(prompts, "x/b")


@pytest.mark.parametrize(
    "cursor", ["", "x", "[0]", "[9,null]", "[-1,null]", '["0",null]', '[0,"x"]', "[" * 5000]
)
async def test_invalid_cursor_of_prompts_is_rejected(cursor: str) -> None:
    """A forged cursor is -32602."""
    with pytest.raises(InvalidParams, match=r"^Invalid cursor: "):
        await page(prompts_of([static("a")]), cursor)


async def test_page_of_prompts_has_ttl_and_cache_scope() -> None:
    """The shortest time of all; public only if all are; the same on every page."""
    prompts = prompts_of(
        [static("a", cache_ttl=60), static("b", cache_ttl=1.5), Letters("x/", "a", cache_ttl=2)]
    )
    first = await page(prompts, size=2)
    second = await page(prompts, first.next_cursor, size=2)

    assert (first.ttl_ms, first.cache_scope) == (1500, "private")
    assert (second.ttl_ms, second.cache_scope) == (1500, "private")
    assert (await page(prompts_of([static("a")]))).cache_scope == "public"
    open_to_all = prompts_of([static("a"), Letters("x/", "a", cache_scope="public")])
    assert (await page(open_to_all)).cache_scope == "public"


class Idle(PromptRepo):
    """Has nothing."""

    prefix = "idle/"


class Wordless(Letters):
    """Cannot be made without arguments."""


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (Idle, "Idle has no list"),
        (type("Half", (Idle,), {"list": Letters.list}), "Half has no get"),
        (type("Bare", (PromptRepo,), {}), "Bare.prefix must be a text, not None"),
        (Letters("x", "", cache_ttl="1"), "Letters.cache_ttl must be a number of seconds"),
        (Letters("x", "", cache_scope=None), "Letters.cache_scope must be"),
        (Wordless, "Wordless takes arguments; give an instance of it"),
        (Prompt, "Prompt has no name"),
        (len, "is not a prompt: give a Prompt class"),
        ("review", "'review' is not a prompt"),
    ],
)
def test_invalid_prompt_is_rejected(given: Any, error: str) -> None:
    """The error is raised when the collection is made."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        prompts_of([given])


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (None, "Odd.list (prompts x/*) returned NoneType: it must return a list"),
        ({"a": 1}, "Odd.list (prompts x/*) returned dict"),
        (["x"], "returned 'x' in its list: each prompt must be a PromptDefinition"),
        ([PromptDefinition("y/a")], "name begins with 'x/'"),
        (([PromptDefinition("x/a")], {1j}), "is not JSON"),
    ],
)
async def test_invalid_page_of_a_repository_is_an_error(returned: Any, error: str) -> None:
    """An invalid page is a defect of the repository."""

    class Odd(Idle):
        prefix = "x/"
        get = Letters.get

        async def list(self, cursor: Any, channel: Channel) -> Any:
            return returned

    with pytest.raises(ContractError, match=re.escape(error)):
        await page(prompts_of([Odd]))


async def test_invalid_message_of_a_repository_is_an_error() -> None:
    """A value that is not a message is a defect, logged with the name."""

    class Odd(Letters):
        async def get(self, name: str, arguments: Any, channel: Channel) -> Any:
            return 5

    with pytest.raises(ContractError, match=r"^Odd.get \(prompt 'x/a'\) returned int is no"):
        await got(prompts_of([Odd("x/", "a")]), "x/a")


async def test_base_hooks_of_a_prompt_repository() -> None:
    """A subclass may call them: they return None or raise NotImplementedError."""
    repo, one = PromptRepo(), Prompt()

    assert None is repo.complete("x", "a", "", {}, NOWHERE)
    assert None is one.complete("a", "", {}, NOWHERE)
    with pytest.raises(NotImplementedError):
        repo.list(None, NOWHERE)
    with pytest.raises(NotImplementedError):
        repo.get("x", {}, NOWHERE)
    with pytest.raises(NotImplementedError):
        one.get(NOWHERE, NOWHERE)
