"""Tools as classes, with structs as arguments and results, and a call that runs once.

Explained by steps 2 and 3 of the tutorial, and by the page on idempotency keys.
"""

from typing import Annotated

from msgspec import Meta, Struct

from example_app.tools.assigned import user_of, workshop_of
from example_app.workshop import Category, Part, Refusal
from genmcp import Channel, Tool, ToolAnnotations, ToolError, ToolRequest

__all__ = ["SearchParts", "WithdrawPart"]


# A misspelt argument is an error for the model to correct, not ignored.
class SearchArguments(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(description="Words of the number or name; none finds all")] = ""
    category: Annotated[Category | None, Meta(description="Only parts of this category")] = None
    below_minimum: Annotated[
        bool, Meta(description="Only parts of which there are fewer than there should be")
    ] = False
    limit: Annotated[int, Meta(ge=1, le=100, description="How many parts to list")] = 20


class SearchResult(Struct):
    """The first parts found, by name; `total` counts all of them."""

    total: int
    parts: list[Part]


class SearchParts(Tool[SearchArguments]):
    """Finds parts in the store: their numbers, prices in cents, shelves, and how many are left."""

    name = "search_parts"
    title = "Search parts"
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    output_schema = SearchResult

    # A `def` hook runs in a thread, so it may block.
    def call(self, request: ToolRequest[SearchArguments], channel: Channel) -> SearchResult:
        wanted = request.arguments
        found = workshop_of(channel).parts(
            wanted.text, wanted.category, below_minimum=wanted.below_minimum
        )
        return SearchResult(total=len(found), parts=found[: wanted.limit])


class WithdrawArguments(Struct, forbid_unknown_fields=True):
    part: Annotated[str, Meta(description="The part's number, as search_parts gives it")]
    repair: Annotated[int, Meta(description="The number of the open repair it is for")]
    quantity: Annotated[int, Meta(ge=1, le=100, description="How many to take")] = 1
    request_id: Annotated[
        str | None,
        Meta(description="A new one for each withdrawal; sent again, it takes nothing more"),
    ] = None


class WithdrawPart(Tool[WithdrawArguments]):
    """Takes parts from the shelf for an open repair."""

    name = "withdraw_part"
    title = "Withdraw a part"
    # A client that does not know whether its call was carried out sends it again. Over HTTP this
    # needs a login: the key belongs to its user.
    idempotency_key = "request_id"
    annotations = ToolAnnotations(destructive_hint=False, open_world_hint=False)

    # `async def`, since it awaits the channel; blocking work runs in a thread.
    async def call(self, request: ToolRequest[WithdrawArguments], channel: Channel) -> str:
        wanted = request.arguments
        try:
            part = await channel.in_thread(
                workshop_of(channel).withdraw,
                wanted.part,
                wanted.quantity,
                wanted.repair,
                user_of(channel),
            )
        except Refusal as refusal:
            raise ToolError(str(refusal)) from refusal
        if part.stock < part.minimum:
            await channel.log("warning", {"part": part.number, "stock": part.stock})
        return (
            f"Took {wanted.quantity} x {part.name} from shelf {part.shelf} for repair "
            f"{wanted.repair}. {part.stock} left."
        )
