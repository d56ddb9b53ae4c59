"""The workshop's tools, called by the official client in both eras."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, LoggingMessageNotificationParams, TextContent

from tests.example_app.connecting import Mode, connected

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("mode", ["auto", "legacy"]),
]


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def structured(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the structured content of a call that succeeds."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return result.structured_content


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path at which the workshop creates its database."""
    return tmp_path / "workshop.db"


async def test_workshop_speaks_the_revision_of_each_era(database: Path, mode: Mode) -> None:
    """The same URL serves the newest revision of both eras."""
    async with connected(database, mode) as client:
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
        assert client.server_info is not None
        assert client.server_info.title == "Bicycle workshop"
        assert "search_parts" in (client.instructions or "")


@pytest.mark.parametrize("repair", [2**63, -(2**70), 10**30])
async def test_workshop_number_of_more_than_64_bits_is_not_found(
    database: Path, mode: Mode, repair: int
) -> None:
    """JSON integers have any size, unlike SQLite's: an error result, not an OverflowError."""
    async with connected(database, mode) as client:
        for tool, more in (
            ("repair_sheet", {}),
            ("close_repair", {}),
            ("withdraw_part", {"part": "x"}),
        ):
            result = await client.call_tool(tool, {"repair": repair, **more})

            assert result.is_error
            assert text_of(result) == f"There is no repair {repair}."


async def test_workshop_lists_its_tools(database: Path, mode: Mode) -> None:
    """In order, with title, description and annotations."""
    async with connected(database, mode) as client:
        tools = (await client.list_tools()).tools

    assert [tool.name for tool in tools] == [
        "withdraw_part",
        "book_delivery",
        "plan_orders",
        "review_minimums",
        "list_repairs",
        "repair_sheet",
        "open_repair",
        "close_repair",
        "search_parts",  # with the app that shows its results
        "get_call_result",  # added by the suite, because some tools can be held over
    ]
    assert all(tool.title and tool.description and tool.annotations for tool in tools)
    reading = [tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint]
    assert reading == [
        "plan_orders",
        "list_repairs",
        "repair_sheet",
        "search_parts",
        tools[-1].name,
    ]


async def test_workshop_search_finds_by_words_category_and_stock(
    database: Path, mode: Mode
) -> None:
    """All words must match, filters combine, and `total` counts matches beyond `limit`."""
    async with connected(database, mode) as client:
        chains = await structured(client, "search_parts", text="11-SPEED chain", limit=2)
        low = await structured(
            client, "search_parts", category="wheels", below_minimum=True, limit=100
        )

    assert chains["total"] == 5
    assert [part["number"] for part in chains["parts"]] == ["CH-103", "CH-203"]
    assert low["parts"]
    assert all(part["category"] == "wheels" for part in low["parts"])
    assert all(part["stock"] < part["minimum"] for part in low["parts"])


async def test_workshop_withdrawal_records_the_user(database: Path, mode: Mode) -> None:
    """The stock decreases. The user comes from a header, by way of the middleware."""
    async with connected(database, mode, user="tomasz") as client:
        repair = await structured(
            client, "open_repair", bicycle="Folding bike", customer="P. Osei", checklist=["chain"]
        )
        before = await structured(client, "search_parts", text="IT-104")
        result = await client.call_tool(
            "withdraw_part", {"part": "IT-104", "repair": repair["id"], "quantity": 2}
        )
        after = await structured(client, "search_parts", text="IT-104")
        sheet = await structured(client, "repair_sheet", repair=repair["id"])

    (part,) = before["parts"]
    left = part["stock"] - 2
    assert text_of(result) == (
        f"Took 2 x Inner tube 28 inch, Albatros from shelf {part['shelf']} for repair "
        f"{repair['id']}. {left} left."
    )
    assert after["parts"][0]["stock"] == left
    assert sheet["checklist"] == ["chain"]
    (line,) = sheet["parts"]
    assert line == {
        "part": "IT-104",
        "name": "Inner tube 28 inch, Albatros",
        "quantity": 2,
        "user": "tomasz",
    }
    assert sheet["cost"] == 2 * part["price"]


async def test_workshop_logs_low_stock(database: Path, mode: Mode) -> None:
    """A withdrawal below the minimum sends a warning to clients with that log level."""
    messages: list[LoggingMessageNotificationParams] = []

    async def receive(message: LoggingMessageNotificationParams) -> None:
        messages.append(message)

    async with connected(database, mode, logging_callback=receive, log_level="info") as client:
        (part,) = (await structured(client, "search_parts", text="IT-104"))["parts"]
        surplus = part["stock"] - part["minimum"]
        for quantity in (surplus, 1):
            await client.call_tool(
                "withdraw_part", {"part": "IT-104", "repair": 2, "quantity": quantity}
            )

    (warning,) = messages
    assert (warning.level, warning.data) == (
        "warning",
        {"part": "IT-104", "stock": part["minimum"] - 1},
    )


async def test_workshop_delivery_is_atomic(database: Path, mode: Mode) -> None:
    """Lines of the same part are added up, and all of them are booked or none."""
    note = "number,quantity\nCH-103,4\nIT-104, 10\nCH-103,1\n"
    async with connected(database, mode) as client:
        before = (await structured(client, "search_parts", text="CH-103"))["parts"][0]["stock"]
        booked = await client.call_tool("book_delivery", {"supplier": "Corvus", "csv": note})
        after = (await structured(client, "search_parts", text="CH-103"))["parts"][0]["stock"]

    assert not booked.is_error
    assert text_of(booked).startswith("Booked 15 pieces from Corvus.\nCH-103: ")
    assert after == before + 5


async def test_workshop_plan_reports_progress_and_orders(database: Path, mode: Mode) -> None:
    """Progress reaches its total; the plan is structured content."""
    steps: list[tuple[float, float | None, str | None]] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with connected(database, mode) as client:
        result = await client.call_tool(
            "plan_orders", {"category": "brakes", "simulations": 100}, progress_callback=step
        )

    assert [done for done, _, _ in steps] == list(range(46))
    assert {total for _, total, _ in steps} == {45}
    assert steps[0][2] == "Brake cable 1600 mm, Albatros"
    plan = result.structured_content
    assert isinstance(plan, dict)
    assert plan["cost"] == sum(line["cost"] for line in plan["lines"])
    assert all(line["quantity"] > 0 for line in plan["lines"])


async def test_workshop_lists_open_repairs(database: Path, mode: Mode) -> None:
    """A closed repair leaves the list. Closing it again changes nothing."""
    async with connected(database, mode) as client:
        first = await structured(client, "close_repair", repair=3)
        second = await structured(client, "close_repair", repair=3)
        listed = text_of(await client.call_tool("list_repairs"))

    assert first["closed"]
    assert second == first
    assert '"id":4' in listed
    assert '"id":3' not in listed


async def test_workshop_refusals_are_for_the_model_to_read(database: Path, mode: Mode) -> None:
    """A violated rule of the workshop is an error result with the reason."""
    unknown = "number,quantity\nCH-103,1\nXX-1,1"
    calls: list[tuple[str, dict[str, Any], str]] = [
        (
            "withdraw_part",
            {"part": "IT-104", "repair": 2, "quantity": 100},
            "of IT-104 (Inner tube 28 inch, Albatros) are left, not 100.",
        ),
        ("withdraw_part", {"part": "IT-104", "repair": 1}, "Repair 1 was closed on "),
        ("withdraw_part", {"part": "IT-104", "repair": 99}, "There is no repair 99."),
        ("withdraw_part", {"part": "XX-1", "repair": 2}, "There is no part XX-1."),
        (
            "book_delivery",
            {"supplier": "Corvus", "csv": unknown},
            "Nothing was booked; no such part numbers: XX-1.",
        ),
        ("repair_sheet", {"repair": 99}, "There is no repair 99."),
        ("close_repair", {"repair": 99}, "There is no repair 99."),
    ]
    async with connected(database, mode) as client:
        for tool, arguments, reason in calls:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert reason in text_of(result)


async def test_workshop_reports_invalid_arguments(database: Path, mode: Mode) -> None:
    """SEP-1303: arguments that do not match the schema are an error result, too."""
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("search_parts", {"category": "wings"}, '- /category: expected "brakes", "cockpit", '),
        ("search_parts", {"txt": "chain"}, "- /txt: unexpected property"),
        ("withdraw_part", {"part": "IT-104"}, '- (root): missing required property "repair"'),
        ("book_delivery", {"supplier": "", "csv": ""}, "- /supplier: expected at least 1 char"),
        ("repair_sheet", {"repair": "2"}, '- /repair: expected an integer, got the string "2"'),
    ]
    async with connected(database, mode) as client:
        for tool, arguments, fault in calls:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert fault in text_of(result)


async def test_workshop_refuses_a_malformed_delivery_note(database: Path, mode: Mode) -> None:
    """`validate` rejects it with a text for the model, which names the line."""
    async with connected(database, mode) as client:
        for note, reason in [
            ("part;count", "csv, line 1: must be number,quantity"),
            ("number,quantity", "csv: lists no parts"),
            ("number,quantity\nCH-103,1\nCH-203;2", "csv, line 3: must be a part number and how"),
            ("number,quantity\nCH-103,-1", "csv, line 2: must be a part number and how"),
        ]:
            result = await client.call_tool("book_delivery", {"supplier": "Corvus", "csv": note})
            assert result.is_error
            assert reason in text_of(result)


async def test_workshop_hides_internal_errors(
    database: Path, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    """For a corrupt record the client gets a reference, and the log has the cause."""
    async with connected(database, mode) as client:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE repairs SET checklist = '[\"secret' WHERE id = 2")
        result = await client.call_tool("repair_sheet", {"repair": 2})
        other = await client.call_tool("repair_sheet", {"repair": 3})

    assert result.is_error
    text = text_of(result)
    assert text.startswith("The tool failed unexpectedly (reference ")
    (record,) = [record for record in caplog.records if record.name == "genmcp"]
    assert text.split()[-1].strip(").") in record.getMessage()
    assert record.exc_info
    assert not other.is_error
