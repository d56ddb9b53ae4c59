"""A prompt with typed arguments and completion. Explained by the page on prompts."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

from example_app.resources import sheet_uri
from example_app.tools.assigned import workshop_of
from example_app.workshop import Refusal
from genmcp import Channel, InvalidParams, Prompt, PromptRequest, embedded_resource
from genmcp.completion import prefix_matches

__all__ = ["CustomerLetter"]


class LetterArguments(Struct):
    repair: Annotated[int, Meta(description="The number of the repair")]
    language: Literal["English", "French", "German"] = "English"


class CustomerLetter(Prompt[LetterArguments]):
    """Writes a letter to a customer about the work done on the bicycle, and its cost."""

    name = "customer_letter"
    title = "Letter to a customer"

    def get(self, request: PromptRequest[LetterArguments], channel: Channel) -> list[Any]:
        wanted = request.arguments
        try:
            sheet = workshop_of(channel).sheet(wanted.repair)
        except Refusal as refusal:
            raise InvalidParams(str(refusal)) from refusal
        text = json.encode(sheet).decode()
        wish = (
            f"Write a short letter in {wanted.language} to {sheet.customer}: what we did on the "
            f"bicycle, which parts it took, and their cost in euros."
        )
        return [embedded_resource(sheet_uri(sheet.id), text, "application/json"), wish]

    def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> list[str] | None:
        """Return the numbers of repairs. Languages are completed from their type."""
        if argument != "repair":
            return None
        repairs = workshop_of(channel).repairs(closed=True)
        return prefix_matches((str(repair.id) for repair in repairs), value)
