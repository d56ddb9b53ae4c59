"""The domain of the application: parts, deliveries, repairs and the forecast of demand."""

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Literal

import msgspec
from msgspec import Struct

from example_app.database import Database

__all__ = [
    "Announce",
    "Category",
    "Line",
    "Part",
    "Refusal",
    "Repair",
    "RepairSheet",
    "Workshop",
    "enough",
]

Announce = Callable[[Literal["part", "repair", "new repair"], str], None]

Category = Literal["brakes", "cockpit", "drivetrain", "lights", "wheels"]


class Refusal(Exception):
    """The rules of the workshop forbid an operation. The text gives the reason to users."""


class Part(Struct, frozen=True):
    """A part in the store. `price` is in cents; below `minimum`, more should be ordered."""

    number: str
    name: str
    category: Category
    shelf: str
    price: int
    stock: int
    minimum: int


class Line(Struct, frozen=True):
    """A part that went into a repair."""

    part: str
    name: str
    quantity: int
    user: str


class Repair(Struct, frozen=True):
    """A repair, with its opening and closing days. A closed repair takes no more parts."""

    id: int
    bicycle: str
    customer: str
    opened: str
    closed: str | None


class RepairSheet(Repair, frozen=True):
    """A repair with its checklist and parts; `cost` is the sum of their prices, in cents."""

    checklist: list[str]
    parts: list[Line]
    cost: int


class Workshop:
    """The workshop, stored in a *database*. Its methods block while SQLite works.

    *announce* is called after each change, in the thread that has made it, with the kind of what
    has changed and its number: a part, a repair, or a repair that is new.
    """

    def __init__(self, database: Database, announce: Announce = lambda kind, number: None) -> None:
        self.database = database
        self.announce = announce

    def parts(
        self, text: str = "", category: Category | None = None, *, below_minimum: bool = False
    ) -> list[Part]:
        """Return the parts whose number or name contains every word of *text*, sorted by name."""
        query = "SELECT * FROM parts WHERE (? IS NULL OR category = ?)"
        values: list[str | None] = [category, category]
        if below_minimum:
            query += " AND stock < minimum"
        for word in text.split():
            query += " AND instr(lower(number || ' ' || name), lower(?))"
            values.append(word)
        with self.database.reading() as connection:
            rows = connection.execute(query + " ORDER BY name, number", values)
            return [Part(**row) for row in rows]

    def withdraw(self, number: str, quantity: int, repair: int, user: str) -> Part:
        """Take parts from the shelf for a repair, and return the part with its new stock."""
        with self.database.writing() as connection:
            row = _repair(connection, repair)
            if row["closed"] is not None:
                raise Refusal(f"Repair {repair} was closed on {row['closed']}; open a new one.")
            part = _part(connection, number)
            if part.stock < quantity:
                raise Refusal(
                    f"Only {part.stock} of {number} ({part.name}) are left, not {quantity}."
                )
            _move(connection, number, -quantity, repair=repair, user=user)
            part = _part(connection, number)
        self.announce("part", number)
        self.announce("repair", str(repair))
        return part

    def receive(self, supplier: str, quantities: Mapping[str, int], user: str) -> list[Part]:
        """Book a delivery completely or not at all, and return its parts with their new stock."""
        with self.database.writing() as connection:
            known = {row["number"] for row in connection.execute("SELECT number FROM parts")}
            if unknown := quantities.keys() - known:
                raise Refusal(
                    f"Nothing was booked; no such part numbers: {', '.join(sorted(unknown))}."
                )
            for number, quantity in quantities.items():
                _move(connection, number, quantity, supplier=supplier, user=user)
            parts = [_part(connection, number) for number in quantities]
        for part in parts:
            self.announce("part", part.number)
        return parts

    def repairs(self, *, closed: bool) -> list[Repair]:
        """Return the open repairs, newest first; with *closed*, all repairs."""
        query = "SELECT id, bicycle, customer, opened, closed FROM repairs"
        with self.database.reading() as connection:
            rows = connection.execute(
                query + " WHERE ? OR closed IS NULL ORDER BY id DESC", [closed]
            )
            return [Repair(**row) for row in rows]

    def open_repair(self, bicycle: str, customer: str, checklist: list[str]) -> RepairSheet:
        """Open a repair."""
        with self.database.writing() as connection:
            made = connection.execute(
                "INSERT INTO repairs (bicycle, customer, checklist, opened) VALUES (?, ?, ?, ?)"
                " RETURNING id",
                [bicycle, customer, msgspec.json.encode(checklist).decode(), _today()],
            ).fetchone()
            sheet = _sheet(connection, made["id"])
        self.announce("new repair", str(sheet.id))
        return sheet

    def close_repair(self, id: int) -> RepairSheet:
        """Close a repair. A closed one is not changed."""
        with self.database.writing() as connection:
            _repair(connection, id)
            connection.execute(
                "UPDATE repairs SET closed = ? WHERE id = ? AND closed IS NULL", [_today(), id]
            )
            sheet = _sheet(connection, id)
        self.announce("repair", str(id))
        return sheet

    def sheet(self, id: int) -> RepairSheet:
        """Return the sheet of a repair."""
        with self.database.reading() as connection:
            return _sheet(connection, id)

    def demand(self, number: str) -> list[int]:
        """Return the withdrawals of a part in each of the last 52 weeks, oldest first."""
        with self.database.reading() as connection:
            rows = connection.execute(
                "SELECT CAST(julianday(?) - julianday(day) AS INTEGER) / 7 AS weeks_ago, change"
                " FROM movements WHERE part = ? AND change < 0",
                [_today(), number],
            )
            weeks: Counter[int] = Counter()
            for row in rows:
                weeks[row["weeks_ago"]] -= row["change"]
        return [weeks[ago] for ago in reversed(range(52))]

    def other_minimums(self, minimums: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return the minimums that would change, by part number: the current and the new one."""
        return {
            part.number: (part.minimum, minimums[part.number])
            for part in self.parts()
            if minimums.get(part.number, part.minimum) != part.minimum
        }

    def set_minimums(self, minimums: Mapping[str, int]) -> None:
        """Set the minimums of parts, by part number. Idempotent."""
        with self.database.writing() as connection:
            connection.executemany(
                "UPDATE parts SET minimum = ? WHERE number = ?",
                [(minimum, number) for number, minimum in minimums.items()],
            )
        for number in minimums:
            self.announce("part", number)

    def part(self, number: str) -> Part:
        """Return a part."""
        with self.database.reading() as connection:
            return _part(connection, number)

    def stock(self) -> dict[str, int]:
        """Return how many of each part are left, by number."""
        return {part.number: part.stock for part in self.parts()}


def _part(connection: sqlite3.Connection, number: str) -> Part:
    row = connection.execute("SELECT * FROM parts WHERE number = ?", [number]).fetchone()
    if row is None:
        raise Refusal(f"There is no part {number}.")
    return Part(**row)


def _repair(connection: sqlite3.Connection, id: int) -> sqlite3.Row:
    # Integers of SQLite have 64 bits, those of JSON and Python are unbounded.
    known = id.bit_length() < 64
    query = "SELECT * FROM repairs WHERE id = ?"
    row: sqlite3.Row | None = connection.execute(query, [id]).fetchone() if known else None
    if row is None:
        raise Refusal(f"There is no repair {id}.")
    return row


def _sheet(connection: sqlite3.Connection, id: int) -> RepairSheet:
    row = _repair(connection, id)
    taken = connection.execute(
        "SELECT part, name, -change AS quantity, user, price FROM movements"
        " JOIN parts ON number = part WHERE repair = ? ORDER BY id",
        [id],
    ).fetchall()
    return RepairSheet(
        id=id,
        bicycle=row["bicycle"],
        customer=row["customer"],
        opened=row["opened"],
        closed=row["closed"],
        checklist=msgspec.json.decode(row["checklist"], type=list[str]),
        parts=[Line(line["part"], line["name"], line["quantity"], line["user"]) for line in taken],
        cost=sum(line["quantity"] * line["price"] for line in taken),
    )


def _move(
    connection: sqlite3.Connection,
    part: str,
    change: int,
    *,
    user: str,
    repair: int | None = None,
    supplier: str | None = None,
) -> None:
    connection.execute("UPDATE parts SET stock = stock + ? WHERE number = ?", [change, part])
    connection.execute(
        "INSERT INTO movements (part, change, repair, supplier, user, day)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [part, change, repair, supplier, user, _today()],
    )


def _today() -> str:
    return date.today().isoformat()  # noqa: DTZ011  # the day on the workshop's wall


def enough(
    number: str, past: Sequence[int], *, weeks: int, certainty: float, simulations: int
) -> int:
    """Return the stock that is sufficient for *weeks* weeks with the probability *certainty*.

    Each simulation draws its weeks from *past*, the withdrawals of each past week. Results for the
    same part *number* and past are equal.
    """
    chance = random.Random(number)
    totals = sorted(sum(chance.choices(past, k=weeks)) for _ in range(simulations))
    return totals[int(certainty * len(totals))]
