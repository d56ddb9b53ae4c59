"""Completion: of prompts and templates, by hooks and by types."""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

import msgspec
import pytest

from genmcp.channel import Channel
from genmcp.completion import Completer, complete_result, prefix_matches
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import ConfigurationError, ContractError, InvalidParams
from genmcp.hook import Hook
from genmcp.prompts.prompt import Prompt, PromptRepo
from genmcp.prompts.template import PromptTemplate
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)
from genmcp.protocol.revisions.chain import LATEST
from genmcp.suite.collection import PROMPTS, Collection
from genmcp.suite.suite import Suite
from tests.support.channels import channel_of


def prompts_of(given: Sequence[object]) -> Collection:
    return Collection(PROMPTS, [PROMPTS.route_of(each) for each in given])


async def ask(
    ref: PromptReference | ResourceTemplateReference,
    argument: str,
    value: str = "",
    context: CompletionContext | None = None,
    prompts: Sequence[object] = (),
    completer: Completer | None = None,
) -> Completion:
    """Return the completion of a suite with *prompts*, or of *completer*."""
    params = CompleteRequestParams(
        ref=ref, argument=CompletionArgument(argument, value), context=context
    )
    request = Request(
        id=1,
        method="completion/complete",
        params=params,
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
    )
    channel = channel_of(request)
    if completer is not None:
        return (await completer.complete(params, channel)).completion
    result = await Suite("test", prompts=prompts).handle(request, channel)
    assert isinstance(result, CompleteResult)
    return result.completion


class Level(IntEnum):
    LOW = 10
    HIGH = 20


class Options(msgspec.Struct):
    language: Literal["python", "Pascal", "rust"]
    level: Level | None = None
    strict: bool = False
    note: str = ""


class Review(Prompt[Options]):
    """Asks for a review."""

    name = "review"

    async def get(self, request: Any, channel: Channel) -> str:
        return ""


@pytest.mark.parametrize(
    ("argument", "value", "values"),
    [
        ("language", "", ["Pascal", "python", "rust"]),
        ("language", "p", ["Pascal", "python"]),
        ("language", "PY", ["python"]),
        ("language", "x", []),
        ("level", "", ["10", "20"]),
        ("level", "2", ["20"]),
        ("strict", "t", ["true"]),
        ("note", "", []),
    ],
)
async def test_completion_uses_the_values_of_types(
    argument: str, value: str, values: list[str]
) -> None:
    """A Literal, an enum and a bool complete the typed prefix by themselves."""
    found = await ask(PromptReference("review"), argument, value, prompts=[Review])

    assert Completion(values, len(values), False) == found


async def test_completion_hook_gets_value_and_context() -> None:
    """The hook runs first, with the context; after None the values of the type are used."""
    seen: list[Any] = []

    class Asks(Review):
        async def complete(
            self, argument: str, value: str, context: Mapping[str, str], channel: Channel
        ) -> Any:
            seen.append((argument, value, context, channel.request.method))
            return ["found"] if argument == "note" else None

    prompts = [Asks]
    context = CompletionContext({"language": "rust"})

    assert (await ask(PromptReference("review"), "note", "x", context, prompts)).values == ["found"]
    assert (await ask(PromptReference("review"), "language", "r", prompts=prompts)).values == [
        "rust"
    ]
    await ask(PromptReference("review"), "note", "", CompletionContext(), prompts)
    assert seen == [
        ("note", "x", {"language": "rust"}, "completion/complete"),
        ("language", "r", {}, "completion/complete"),
        ("note", "", {}, "completion/complete"),
    ]


async def test_completion_uses_the_completions_of_a_prompt() -> None:
    """`completions` are for arguments that are texts."""
    prompt = PromptTemplate(name="x", messages="{city}", completions={"city": ["Oslo", "Rome"]})

    assert (await ask(PromptReference("x"), "city", "o", prompts=[prompt])).values == ["Oslo"]


async def test_completion_of_a_repository_gets_the_prompt() -> None:
    """A repository has many prompts; it decides which arguments each has."""

    class Library(PromptRepo):
        prefix = "lib/"

        async def list(self, cursor: Any, channel: Channel) -> Any:
            return []

        async def get(self, name: str, arguments: Mapping[str, str], channel: Channel) -> Any:
            return ""

        def complete(
            self, name: str, argument: str, value: str, context: Mapping[str, str], channel: Channel
        ) -> Any:
            return [name, argument, value]

    class Silent(Library):
        prefix = "silent/"
        complete = PromptRepo.complete

    prompts = [Library, Silent]

    assert (await ask(PromptReference("lib/a"), "b", "c", prompts=prompts)).values == [
        "lib/a",
        "b",
        "c",
    ]
    assert (await ask(PromptReference("silent/a"), "b", "c", prompts=prompts)).values == []
    assert prompts_of(prompts).completes
    assert not prompts_of([Silent]).completes


@pytest.mark.parametrize(
    ("prompt", "completes"),
    [
        (Review(), True),
        (PromptTemplate(name="x", messages="{a}"), False),
        (PromptTemplate(name="x", messages="{a}", completions={"a": ["b"]}), True),
    ],
)
def test_completion_is_declared_for_hooks_and_known_values(prompt: Any, completes: bool) -> None:
    """The capability is declared for hooks and for known values."""
    assert completes is prompts_of([prompt]).completes


@pytest.mark.parametrize(
    ("ref", "argument", "error"),
    [
        (PromptReference("other"), "a", "Unknown prompt: other"),
        (ResourceTemplateReference("a://{b}"), "b", "Unknown resource template: a://{b}"),
        (PromptReference("review"), "a", "Unknown argument of prompt review: a"),
    ],
)
async def test_completion_of_an_unknown_argument_is_rejected(
    ref: Any, argument: str, error: str
) -> None:
    """2026-07-28, completion, "Error Handling": -32602."""
    with pytest.raises(InvalidParams, match=f"^{re.escape(error)}$"):
        await ask(ref, argument, prompts=[Review])


async def test_completion_of_templates_needs_only_the_hook() -> None:
    """`complete` is the only hook that is needed, and it is optional."""

    class Books:
        async def complete(
            self, argument: str, value: str, context: Mapping[str, str], channel: Channel
        ) -> Any:
            return (f"{value}!",)

    def completer(provider: object) -> Completer:
        hook = Hook.of(provider, "complete", object)
        return Completer(owner="template a://{b}", names=["b"], hook=hook)

    ref = ResourceTemplateReference("a://{b}")

    assert await ask(ref, "b", "x", completer=completer(Books())) == Completion(("x!",), 1, False)
    assert await ask(ref, "b", "x", completer=completer(object())) == Completion([], 0, False)
    with pytest.raises(InvalidParams, match=r"Unknown argument of template a://\{b\}: c"):
        await ask(ref, "c", completer=completer(Books()))


def test_completion_hook_that_yields_is_rejected() -> None:
    """It must return its suggestions."""

    class Yields(Review):
        def complete(self, *arguments: Any) -> Any:
            yield "x"

    with pytest.raises(ConfigurationError, match=re.escape("Yields.complete yields")):
        prompts_of([Yields])


MANY = [str(number) for number in range(250)]


@pytest.mark.parametrize(
    ("found", "completion"),
    [
        ([], Completion([], 0, False)),
        (("a", "b"), Completion(("a", "b"), 2, False)),
        (MANY[:100], Completion(MANY[:100], 100, False)),
        (MANY, Completion(MANY[:100], 250, True)),
        (Completion(["a"]), Completion(["a"], 1, False)),
        (Completion(["a"], total=9), Completion(["a"], 9, True)),
        (Completion(["a"], has_more=True), Completion(["a"], None, True)),
        (Completion(["a"], 9, False), Completion(["a"], 9, False)),
        (Completion(MANY, has_more=False), Completion(MANY[:100], 250, True)),
        (Completion(MANY, total=1000), Completion(MANY[:100], 1000, True)),
        (CompleteResult(completion=Completion(MANY)), Completion(MANY[:100], 250, True)),
    ],
)
def test_completion_has_at_most_100_values_and_a_total(found: Any, completion: Completion) -> None:
    """2026-07-28, completion, "Completion Results"."""
    assert completion == complete_result(found).completion


def test_completion_keeps_the_meta_of_a_result() -> None:
    """Further members of a hook's completion are sent."""
    given = CompleteResult(completion=Completion(["a"]), meta={"a": 1})

    assert complete_result(given).meta == {"a": 1}


@pytest.mark.parametrize("found", ["text", 5, {"a": 1}, ["a", 1], Completion("text")])
async def test_completion_that_is_not_text_is_an_error(found: Any) -> None:
    """It is a defect of the hook, logged with the argument."""

    class Odd(Review):
        async def complete(self, *arguments: Any) -> Any:
            return found

    with pytest.raises(ContractError, match=r"^complete of prompt review: return a list of texts"):
        await ask(PromptReference("review"), "note", prompts=[Odd])


def test_completion_compares_without_case() -> None:
    """`ß` begins with `SS`, and the order stays."""
    assert prefix_matches(["Straße", "Rad", "STRASSE"], "strass") == ["Straße", "STRASSE"]
