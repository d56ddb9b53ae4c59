"""The data of a new database: a parts store, and a year of withdrawals."""

import random
import sqlite3
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import product

__all__ = ["fill"]

# category, letters of the number, kind, variants, cents, average withdrawals per week
RANGE = [
    ("brakes", "BP", "Brake pads", ["rim", "disc organic", "disc sintered"], 1290, 1.5),
    ("brakes", "BC", "Brake cable", ["1600 mm", "2000 mm", "3500 mm"], 390, 1.0),
    ("brakes", "BR", "Brake rotor", ["160 mm", "180 mm", "203 mm"], 2490, 0.4),
    ("cockpit", "GR", "Grips", ["short", "long", "cork"], 1690, 0.5),
    ("cockpit", "HT", "Handlebar tape", ["black", "white", "red"], 1490, 0.5),
    ("drivetrain", "CH", "Chain", ["8-speed", "10-speed", "11-speed", "12-speed"], 2790, 1.2),
    ("drivetrain", "CS", "Cassette", ["11-28", "11-34", "11-42", "10-51"], 4990, 0.5),
    ("drivetrain", "PE", "Pedals", ["flat", "clipless"], 3490, 0.4),
    ("lights", "FL", "Front light", ["30 lux", "60 lux", "100 lux"], 3990, 0.6),
    ("lights", "RL", "Rear light", ["battery", "dynamo"], 1990, 0.7),
    ("wheels", "IT", "Inner tube", ["20 inch", "26 inch", "27.5 inch", "28 inch"], 690, 3.0),
    ("wheels", "TY", "Tyre", ["28-622", "37-622", "47-559", "57-584"], 2990, 1.1),
    ("wheels", "SP", "Spoke set", ["260 mm", "274 mm", "292 mm"], 1190, 0.8),
]
MAKERS = ["Albatros", "Brennabor", "Corvus", "Dromedar", "Eisvogel"]
REPAIRS = [
    ("Batavus Dutch bike, black", "M. de Vries", '["gears slip", "rear light out"]'),
    ("Gravel bike, green", "A. Okafor", '["annual service"]'),
    ("Cargo bike", "Kindergarten Sonnenblume", '["front brake weak", "tyre flat"]'),
    ("Child's bike, 20 inch", "J. Lindqvist", '["new grips"]'),
]
USERS = ["ines", "tomasz"]


def fill(connection: sqlite3.Connection) -> None:
    """Fill the empty tables. The data is always the same, except for the days."""
    chance = random.Random(1817)
    today = date.today()  # noqa: DTZ011  # the day on the workshop's wall
    for place, (bicycle, customer, checklist) in enumerate(REPAIRS):
        opened = today - timedelta(days=30 - 9 * place)
        closed = opened + timedelta(days=4) if place == 0 else None
        connection.execute(
            "INSERT INTO repairs (bicycle, customer, checklist, opened, closed)"
            " VALUES (?, ?, ?, ?, ?)",
            [bicycle, customer, checklist, str(opened), closed and str(closed)],
        )
    for number, name, category, price, weekly in parts():
        minimum = round(2 * weekly) + 1
        connection.execute(
            "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                number,
                name,
                category,
                f"{category[0].upper()}{chance.randint(1, 12)}",
                price,
                chance.randint(minimum // 2, 4 * minimum),
                minimum,
            ],
        )
        connection.executemany(
            "INSERT INTO movements (part, change, user, day) VALUES (?, ?, ?, ?)",
            [
                (number, -1, chance.choice(USERS), str(today - ago))
                for ago in map(timedelta, range(7, 364))
                if chance.random() < weekly / 7
            ],
        )


def parts() -> Iterator[tuple[str, str, str, int, float]]:
    """Yield every part: number, name, category, price, average withdrawals per week."""
    for category, letters, kind, variants, price, weekly in RANGE:
        offers = product(enumerate(MAKERS, 1), enumerate(variants, 1))
        for (place, maker), (size, variant) in offers:
            cents = round(price * (1 + 0.11 * (place - 3)))
            yield (
                f"{letters}-{place}{size:02}",
                f"{kind} {variant}, {maker}",
                category,
                cents,
                weekly,
            )
