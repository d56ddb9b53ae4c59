"""The statements on records and logs, and the conversion of their parameters and results."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from genmcp.errors import Conflict
from genmcp.stores.accounts import Capacity, Usage
from genmcp.stores.postgres.connection import PostgresOptions, Row
from genmcp.stores.postgres.listener import log_token, payload_of
from genmcp.stores.postgres.loops import StatementKind
from genmcp.stores.store import (
    Append,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    StoreEntry,
    room_of,
    subject_of,
)

_ESCAPED: Final = re.compile("[\x00\x01]")
_ESCAPE: Final = re.compile("\x01([01])")

# LATERAL with OFFSET: one look-up in the index for each key. A plain join is planned as a scan of
# all records while the table is small, and PostgreSQL keeps that plan when the table has grown.
_GET: Final = """
    SELECT ordinality, value, version
    FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS wanted(key, ordinality)
    CROSS JOIN LATERAL (
        SELECT value, version, deadline FROM genmcp.records WHERE key = wanted.key OFFSET 0
    ) AS record
    WHERE deadline > genmcp.clock(%(now)s)
"""
_APPLY: Final = """
    SELECT genmcp.apply(%(writes)s::jsonb, %(values)b::bytea[], %(subjects)s::text[], %(until)s,
        %(now)s, %(news)s)
"""
_TOUCH: Final = """
    UPDATE genmcp.records SET deadline = genmcp.clock(%(now)s) + %(ttl)s,
        sweep_at = least(sweep_at, genmcp.clock(%(now)s) + %(ttl)s)
    WHERE key = %(key)s AND deadline > genmcp.clock(%(now)s) RETURNING key
"""
# One row for each event; one without an event for a log that has none after the position.
_READ: Final = """
    SELECT q.i, l.base, l.floor, q.a IS NULL OR q.a = l.floor OR EXISTS
        (SELECT 1 FROM genmcp.events WHERE log = l.base AND id = q.a AND id > l.floor),
        e.id, e.data
    FROM jsonb_to_recordset(%(requests)s::jsonb) AS q(i int, n text, a bigint, c int)
    LEFT JOIN LATERAL (
        SELECT base, CASE WHEN deadline > genmcp.clock(%(now)s) THEN floor ELSE last END AS floor
        FROM genmcp.logs WHERE name = q.n) AS l ON true
    LEFT JOIN LATERAL (
        SELECT id, data FROM genmcp.events
        WHERE log = l.base AND id > greatest(q.a, l.floor) ORDER BY id LIMIT q.c) AS e ON true
    ORDER BY q.i, e.id
"""
_FIND: Final = """
    SELECT key, value, version FROM genmcp.labels JOIN genmcp.records USING (key)
    WHERE label = %(label)s AND key > %(after)s AND deadline > genmcp.clock(%(now)s)
    ORDER BY key LIMIT %(limit)s
"""
_COUNT: Final = "SELECT count(*) FROM genmcp.labels WHERE label = %(label)s"
_USAGE: Final = """
    SELECT coalesce(sum(entries), 0)::bigint, coalesce(sum(size), 0)::bigint
    FROM genmcp.accounts WHERE name = %(name)s
"""
_SETTINGS: Final = "SELECT current_setting('fsync')::bool"
_SWEEP: Final = "SELECT genmcp.sweep(%(now)s)"

_encode_json = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return *value* as a parameter of type jsonb."""
    return _encode_json(value).decode()


def to_text(name: str) -> str:
    """Return *name* as PostgreSQL can store it: without NUL. Different names stay different."""
    return _ESCAPED.sub(lambda found: "\x01" + "01"[found[0] == "\x01"], name)


def from_text(text: str) -> str:
    """Return the name that `to_text` has converted."""
    if "\x01" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\x00\x01"[int(found[1])], text)


class ReadRequest(NamedTuple):
    """A request for events of a log after the position *after*; None: from the oldest one."""

    log: str
    after: int | None
    limit: int


class LogPage(NamedTuple):
    """The events of a log after a position.

    Attributes:
        base: identifies the log among all of its name, and is the position before its first event.
            None if the log does not exist.
        floor: the position after which all events are retained.
        known: whether the position that was asked for is `floor` or the id of a retained event.
        events: the events, by id.
    """

    base: int | None
    floor: int
    known: bool
    events: list[tuple[int, bytes]]


class Statements:
    """The statements of a `PostgresStore`. One instance per store.

    Args:
        options: those of the store.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self.get = self._kind(_GET, self._get_parameters, _entries)
        self.apply = self._kind(
            _APPLY, self._apply_parameters, self._apply_results, repeatable=False
        )
        self.read = self._kind(_READ, self._read_parameters, _pages)
        self.touch = self._single(
            _TOUCH, lambda item: {"key": to_text(item[0]), "ttl": item[1]}, bool
        )
        self.find = self._single(
            _FIND,
            lambda item: {"label": to_text(item[0]), "after": to_text(item[1]), "limit": item[2]},
            lambda rows: [FoundEntry(from_text(key), *rest) for key, *rest in rows],
        )
        self.count = self._single(
            _COUNT, lambda label: {"label": to_text(label)}, lambda rows: rows[0][0]
        )
        self.usage = self._single(
            _USAGE, lambda name: {"name": to_text(name)}, lambda rows: Usage(*rows[0])
        )
        self.settings = self._single(_SETTINGS, lambda item: {}, lambda rows: rows[0])
        self.sweep = self._single(_SWEEP, lambda item: {}, lambda rows: rows[0][0])

    def _single(
        self,
        sql: str,
        parameters: Callable[[Any], dict[str, object]],
        result: Callable[[Sequence[Row]], Any],
    ) -> StatementKind:
        """Return a kind of statement for one item at a time."""
        return self._kind(
            sql,
            lambda items, until: {**parameters(items[0]), "now": self._options.now},
            lambda items, rows: [result(rows)],
            limit=1,
        )

    def _get_parameters(self, keys: Sequence[str], until: float) -> dict[str, object]:
        return {"keys": [to_text(key) for key in keys], "now": self._options.now}

    def _read_parameters(self, items: Sequence[ReadRequest], until: float) -> dict[str, object]:
        # Many followers of one log send equal reads at the same time: one is sent for all of them.
        requests = [
            {"i": number, "n": to_text(item.log), "a": item.after, "c": item.limit}
            for number, item in enumerate(dict.fromkeys(items))
        ]
        return {"requests": to_json(requests), "now": self._options.now}

    def _kind(self, sql: str, *arguments: Any, **options: Any) -> StatementKind:
        return StatementKind(self._options.in_schema(sql), *arguments, **options)

    def _apply_parameters(self, items: Sequence[Sequence[Op]], until: float) -> dict[str, object]:
        writes, values = [], []
        subjects: set[str] = set()
        tokens: set[str] = set()
        for ops in items:
            operations = []
            for op in ops:
                if isinstance(op, Put):
                    values.append(op.value)
                    operations.append(
                        {
                            "k": "p",
                            "n": to_text(op.key),
                            "t": op.ttl,
                            "e": op.expect,
                            "c": to_text(op.client),
                            "l": [to_text(label) for label in op.labels],
                        }
                    )
                elif isinstance(op, Append):
                    values.append(op.data)
                    tokens.add(log_token(op.log))
                    operations.append(
                        {
                            "k": "a",
                            "n": to_text(op.log),
                            "t": op.ttl,
                            "c": to_text(op.client),
                            "m": op.keep,
                            "b": op.keep_bytes,
                        }
                    )
                else:
                    operations.append({"k": "d", "n": to_text(op.key), "e": op.expect})
            subjects.add(subject_of(operations[0]["n"]))  # type: ignore[arg-type]
            room = room_of(self._options.capacity, ops)
            limits = [
                {"n": to_text(each.account), "e": each.entries, "s": each.size}
                for each in room.limits
            ]
            writes.append({"o": operations, "a": limits, "k": room.slack})
        return {
            "writes": to_json(writes),
            "values": values,
            "subjects": list(subjects),
            "until": until,
            "now": self._options.now,
            "news": payload_of(tokens) if tokens else "",
        }

    def _apply_results(self, items: Sequence[Sequence[Op]], rows: Sequence[Row]) -> list[Any]:
        results: list[Any] = [None] * len(items)
        for failure in rows[0][0] or ():
            number = failure["w"]
            results[number] = _failure(self._options.capacity, failure)
        return results


def _failure(capacity: Capacity, failure: dict[str, Any]) -> Exception:
    """Return the error for a write that genmcp.apply has rejected."""
    name = from_text(failure["n"])
    if "v" in failure:
        return Conflict(f"{name!r}: version {failure['e']} was expected, but it is {failure['v']}")
    return capacity.refusal(name, Usage(failure["e"], failure["s"]))


def _entries(keys: Sequence[str], rows: Sequence[Row]) -> list[StoreEntry | None]:
    entries: list[StoreEntry | None] = [None] * len(keys)
    for number, value, version in rows:
        entries[number - 1] = StoreEntry(value, version)
    return entries


def _pages(items: Sequence[ReadRequest], rows: Sequence[Row]) -> list[LogPage]:
    numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
    pages: dict[int, LogPage] = {}
    for number, base, floor, known, id, data in rows:
        page = pages.setdefault(number, LogPage(base, floor or 0, bool(known), []))
        if id is not None:
            page.events.append((id, data))
    return [pages[numbers[item]] for item in items]


def event_of(id: int, data: bytes) -> LogEvent:
    """Return an event with its public id."""
    return LogEvent(id_of(id), data)


def id_of(position: int) -> str:
    """Return the public id of an event: of fixed width, so that ids sort like their numbers."""
    return f"{position:016x}"
