"""The statements on records and logs, and the conversion of their parameters and results."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from genmcp.stores.accounts import Room, Usage
from genmcp.stores.postgres.connections import StatementKind, log_token, payload_of, single
from genmcp.stores.postgres.server import Row
from genmcp.stores.store import Append, FoundEntry, Op, Put, StoreEntry, subject_of

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
# Whether there may be more, and the server's time.
_SWEEP: Final = "SELECT genmcp.sweep(%(now)s), extract(epoch FROM clock_timestamp())::float8"

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


def _get_parameters(keys: Sequence[str]) -> dict[str, object]:
    return {"keys": [to_text(key) for key in keys]}


def _get_results(keys: Sequence[str], rows: Sequence[Row]) -> list[StoreEntry | None]:
    entries: list[StoreEntry | None] = [None] * len(keys)
    for number, value, version in rows:
        entries[number - 1] = StoreEntry(value, version)
    return entries


def _read_parameters(items: Sequence[ReadRequest]) -> dict[str, object]:
    requests = [
        {"i": number, "n": to_text(item.log), "a": item.after, "c": item.limit}
        for number, item in enumerate(items)
    ]
    return {"requests": to_json(requests)}


def _read_results(items: Sequence[ReadRequest], rows: Sequence[Row]) -> list[LogPage]:
    pages: dict[int, LogPage] = {}
    for number, base, floor, known, id, data in rows:
        page = pages.setdefault(number, LogPage(base, floor or 0, bool(known), []))
        if id is not None:
            page.events.append((id, data))
    return [pages[number] for number in range(len(items))]


def _apply_parameters(items: Sequence[tuple[Sequence[Op], Room]]) -> dict[str, object]:
    values: list[bytes] = []
    writes = []
    for ops, room in items:
        # JSON has no `inf`, which becomes null: no number of entries exceeds that.
        limits = [
            {"n": to_text(each.account), "e": each.entries, "s": each.size} for each in room.limits
        ]
        operations = [_operation(op, values) for op in ops]
        writes.append({"o": operations, "a": limits, "k": room.slack})
    tokens = {log_token(op.log) for ops, _ in items for op in ops if isinstance(op, Append)}
    subjects = {subject_of(to_text(_name_of(ops[0]))) for ops, _ in items}
    return {
        "writes": to_json(writes),
        "values": values,
        "subjects": list(subjects),
        "news": payload_of(tokens) if tokens else "",
    }


def _name_of(op: Op) -> str:
    return op.log if isinstance(op, Append) else op.key


def _operation(op: Op, values: list[bytes]) -> dict[str, object]:
    """Return *op* in the form that genmcp.apply reads, and add its bytes to *values*."""
    name = to_text(_name_of(op))
    if isinstance(op, Put):
        values.append(op.value)
        labels = [to_text(label) for label in op.labels]
        client = to_text(op.client)
        return {"k": "p", "n": name, "t": op.ttl, "e": op.expect, "c": client, "l": labels}
    if isinstance(op, Append):
        values.append(op.data)
        client, most = to_text(op.client), op.keep_bytes
        return {"k": "a", "n": name, "t": op.ttl, "c": client, "m": op.keep, "b": most}
    return {"k": "d", "n": name, "e": op.expect}


def _apply_results(items: Sequence[Any], rows: Sequence[Row]) -> list[dict[str, Any] | None]:
    results: list[dict[str, Any] | None] = [None] * len(items)
    for failure in rows[0][0] or ():
        results[failure["w"]] = failure
    return results


GET: Final = StatementKind(sql=_GET, parameters=_get_parameters, results=_get_results)
READ: Final = StatementKind(sql=_READ, parameters=_read_parameters, results=_read_results)
APPLY: Final = StatementKind(
    sql=_APPLY, parameters=_apply_parameters, results=_apply_results, repeatable=False
)
TOUCH: Final = single(_TOUCH, lambda item: {"key": to_text(item[0]), "ttl": item[1]}, bool)
FIND: Final = single(
    _FIND,
    lambda item: {"label": to_text(item[0]), "after": to_text(item[1]), "limit": item[2]},
    lambda rows: [FoundEntry(from_text(key), *rest) for key, *rest in rows],
)
COUNT: Final = single(_COUNT, lambda label: {"label": to_text(label)}, lambda rows: rows[0][0])
USAGE: Final = single(_USAGE, lambda name: {"name": to_text(name)}, lambda rows: Usage(*rows[0]))
SETTINGS: Final = single(_SETTINGS, lambda item: {}, lambda rows: rows[0][0])
SWEEP: Final = single(_SWEEP, lambda item: {}, lambda rows: rows[0])
