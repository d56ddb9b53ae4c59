"""The workshop's repair sheets and its letter, read by the official client."""

import json
from pathlib import Path

import pytest
from mcp import MCPError
from mcp.types import (
    EmbeddedResource,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from tests.example_app.connecting import Mode, connected

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("mode", ["auto", "legacy"]),
]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path at which the workshop creates its database."""
    return tmp_path / "workshop.db"


async def test_workshop_sheets_are_listed_and_read(database: Path, mode: Mode) -> None:
    """Each repair is a resource; a new one is listed at once."""
    async with connected(database, mode) as client:
        before = (await client.list_resources()).resources
        opened = await client.call_tool(
            "open_repair", {"bicycle": "Blue tandem", "customer": "Ada", "checklist": ["Brakes"]}
        )
        assert opened.structured_content is not None
        id = opened.structured_content["id"]
        after = (await client.list_resources()).resources
        template, parts = (await client.list_resource_templates()).resource_templates
        (part,) = (await client.read_resource("workshop://parts/CH-103")).contents
        (sheet,) = (await client.read_resource(f"workshop://repairs/{id}")).contents

    assert str(after[0].uri) == f"workshop://repairs/{id}"
    assert after[0].title == "Blue tandem, Ada"
    assert before == after[1:]
    assert template.uri_template == "workshop://repairs/{id}"
    assert parts.uri_template == "workshop://parts/{number}"
    assert isinstance(part, TextResourceContents)
    assert json.loads(part.text)["name"] == "Chain 11-speed, Albatros"
    assert isinstance(sheet, TextResourceContents)
    assert json.loads(sheet.text)["checklist"] == ["Brakes"]


async def test_workshop_sheet_of_no_repair_is_not_found(database: Path, mode: Mode) -> None:
    """For an unknown number and for an invalid one."""
    async with connected(database, mode) as client:
        for path in ("repairs/999", "repairs/x", "parts/none"):
            with pytest.raises(MCPError, match="not found"):
                await client.read_resource(f"workshop://{path}")


async def test_workshop_letter_embeds_the_sheet(database: Path, mode: Mode) -> None:
    """The letter embeds the sheet. Arguments are sent as text, and converted to their types."""
    async with connected(database, mode) as client:
        (letter,) = (await client.list_prompts()).prompts
        got = await client.get_prompt("customer_letter", {"repair": "2", "language": "French"})
        with pytest.raises(MCPError, match=r"There is no repair 999\."):
            await client.get_prompt("customer_letter", {"repair": "999"})

    sheet, wish = (message.content for message in got.messages)
    assert [each.name for each in letter.arguments or ()] == ["repair", "language"]
    assert isinstance(sheet, EmbeddedResource)
    assert str(sheet.resource.uri) == "workshop://repairs/2"
    assert isinstance(wish, TextContent)
    assert "in French to " in wish.text


async def test_workshop_completes_repairs_and_languages(database: Path, mode: Mode) -> None:
    """Numbers come from the database, languages from the type."""
    letter = PromptReference(type="ref/prompt", name="customer_letter")
    sheet = ResourceTemplateReference(type="ref/resource", uri="workshop://repairs/{id}")
    async with connected(database, mode) as client:
        repairs = await client.complete(letter, {"name": "repair", "value": "2"})
        languages = await client.complete(letter, {"name": "language", "value": "g"})
        ids = await client.complete(sheet, {"name": "id", "value": "2"})

    assert "2" in repairs.completion.values
    assert all(id.startswith("2") for id in repairs.completion.values)
    assert languages.completion.values == ["German"]
    assert repairs.completion.values == ids.completion.values
