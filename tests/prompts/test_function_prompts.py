"""`@prompt`: the metadata taken from a function, and the function afterwards."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest

from genmcp import Prompt, Suite, user
from genmcp.channel import Channel
from genmcp.core.request import ClientInfo, PromptRequest
from genmcp.decorator import FunctionPrompt, function_component, prompt
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.prompts.prompt import PromptRoute
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompletionArgument,
    GetPromptRequestParams,
    GetPromptResult,
    PromptArgument,
    PromptReference,
)
from genmcp.protocol.revisions.chain import LATEST
from genmcp.testing import connect
from tests.support.channels import channel_of


async def text(function: Any, **arguments: str) -> str:
    """Get the prompt made of a function; it has one text."""
    route = PromptRoute.of(function_component(FunctionPrompt, function))
    request = PromptRequest(
        id=1,
        method="prompts/get",
        params=GetPromptRequestParams(name=route.definition.name, arguments=arguments),
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
        route=route,
    )
    got = await route.handle(request, channel_of(request))
    assert isinstance(got, GetPromptResult)
    (message,) = got.messages
    return message.content.text  # type: ignore[union-attr]


async def test_prompt_has_name_docstring_and_hints_of_a_function() -> None:
    """The listing has the function's metadata, and arguments have the annotated types."""

    @prompt
    async def review(
        code: Annotated[str, "What to review."],
        lines: int = 3,
        *,
        channel: Channel,
        tone: Literal["kind", "curt"] = "kind",
    ) -> str:
        """Asks for a review."""
        return f"{code} {lines + 1} {tone} {channel.request.method}"

    definition = PromptRoute.of(function_component(FunctionPrompt, review)).definition

    assert (definition.name, definition.description) == ("review", "Asks for a review.")
    assert definition.arguments == [
        PromptArgument("code", description="What to review.", required=True),
        PromptArgument("lines"),
        PromptArgument("tone"),
    ]
    assert await text(review, code="x", lines="4", tone="curt") == "x 5 curt prompts/get"
    with pytest.raises(InvalidParams, match="/other: unexpected property"):
        await text(review, code="x", other="y")


async def test_prompt_is_described_by_its_docstring() -> None:
    """Its arguments by the section `Args:`; a result has the description of the list, too."""

    @prompt
    async def review(code: str, lines: int = 3) -> str:
        """Asks for a review.

        Args:
            code: what to review
            lines: how many
        """
        return code

    class Given(Prompt):
        """Is described by its result."""

        name = "given"

        async def get(self, request: PromptRequest, channel: Channel) -> GetPromptResult:
            return GetPromptResult([user("x")], description="This one.")

    async with connect(Suite("reviews", prompts=[review, Given])) as client:
        listed = (await client.prompts())[0]
        result = await client.prompt("review", {"code": "x"})
        given = await client.prompt("given")
    assert [each.description for each in listed.arguments or ()] == ["what to review", "how many"]
    assert (listed.description, result.description) == ("Asks for a review.",) * 2
    assert given.description == "This one."


async def test_function_under_prompt_stays_callable() -> None:
    """A call runs the function; the decorator accepts the attributes of Prompt."""

    @prompt(name="greet people", title="Greet", cache_ttl=5, cache_scope="private")
    def greet(name: str) -> str:
        return f"Greet {name}"

    made = function_component(FunctionPrompt, greet)

    assert greet("Ann") == "Greet Ann"
    assert await text(greet, name="Bob") == "Greet Bob"
    assert (
        made.name,
        made.title,
        made.cache_ttl,
        made.cache_scope,
    ) == ("greet people", "Greet", 5, "private")
    assert None is made.description


async def test_function_prompt_completes_with_a_function() -> None:
    """`complete` is the hook of a prompt without `self`."""

    def cities(
        argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> list[str]:
        return [f"{argument} {value} {context}"]

    @prompt(complete=cities)
    def travel(city: str) -> str:
        return city

    params = CompleteRequestParams(
        ref=PromptReference("travel"), argument=CompletionArgument("city", "Os")
    )
    completer = PromptRoute.of(function_component(FunctionPrompt, travel)).completer
    assert completer is not None
    found = await completer.complete(params, channel_of())

    assert found.completion.values == ["city Os {}"]


async def test_function_prompt_may_be_a_method_of_an_instance() -> None:
    """The bound method is registered; without its instance it is rejected."""

    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @prompt
        async def advertise(self, what: str) -> str:
            return f"{what} at {self.name}"

    assert await text(Shop("Anns").advertise, what="Shoes") == "Shoes at Anns"
    with pytest.raises(ConfigurationError, match="is a method: give that of an instance"):
        function_component(FunctionPrompt, Shop.advertise)


async def test_function_prompt_may_be_wrapped_afterwards() -> None:
    """An outer decorator runs."""

    @prompt
    async def plain(a: str) -> str:
        return a

    @functools.wraps(plain)
    async def loud(a: str) -> str:
        return (await plain(a)).upper()

    assert await text(loud, a="x") == "X"


ANYTHING: Any = prompt


def _yields(a: str) -> Any:
    yield a


def _positional(*a: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: prompt(int), "@prompt is for functions, not for <class 'int'>"),
        (lambda: prompt(_yields), "_yields yields"),
        (lambda: prompt(_positional), "_positional: parameter *a"),
        (lambda: ANYTHING(output_schema={})(plain), "@prompt takes no output_schema"),
        (lambda: prompt(title="")(plain), "title is blank"),
        (lambda: function_component(FunctionPrompt, plain), "is not a prompt: give a Prompt class"),
    ],
)
def test_invalid_function_prompt_is_rejected(make: Callable[[], Any], error: str) -> None:
    """The error is raised where the decorator stands."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        make()


def plain() -> None:
    """A function that cannot be a prompt, for the test above."""
