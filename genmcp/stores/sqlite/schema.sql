-- The tables of a SQLiteStore. A `deadline` is a time of the store, infinite for what never expires.

-- `labels`: the labels as JSON, null if there are none: the rows of the table `labels` to delete
-- with the record.
CREATE TABLE records (
    key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    deadline REAL NOT NULL, size INTEGER NOT NULL, client TEXT NOT NULL,
    labels TEXT
);
CREATE INDEX records_by_deadline ON records (deadline);
CREATE TABLE labels (
    label TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (label, key)
) WITHOUT ROWID;

-- The row of an expired log stays for a while: see tables.py.
CREATE TABLE logs (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, floor INTEGER NOT NULL,
    last INTEGER NOT NULL, held INTEGER NOT NULL, deadline REAL NOT NULL, size INTEGER NOT NULL,
    client TEXT NOT NULL
);
CREATE INDEX logs_by_deadline ON logs (deadline);
CREATE TABLE events (id INTEGER PRIMARY KEY, log INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX events_by_log ON events (log, id);

-- A due delivery has a turn: see deliveries.py. node: the holder of its lease.
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL, node TEXT,
    due REAL NOT NULL, owner TEXT NOT NULL, turn INTEGER
);
CREATE INDEX deliveries_by_due ON deliveries (queue, due) WHERE turn IS NULL;
CREATE INDEX deliveries_by_turn ON deliveries (queue, turn, number) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_by_owner ON deliveries (queue, owner, turn) WHERE turn IS NOT NULL;

CREATE TABLE accounts (
    name TEXT NOT NULL PRIMARY KEY, entries INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;

-- One row: at least the version of any removed record, the last id that was assigned to an event
-- (it also counts the transactions with news), and at least the last event id of any removed log.
CREATE TABLE counts (
    version INTEGER NOT NULL, event INTEGER NOT NULL, forgotten INTEGER NOT NULL
);

-- The number of the last change of each queue, by which other processes learn of it.
CREATE TABLE news (
    queue TEXT NOT NULL PRIMARY KEY, event INTEGER NOT NULL, deadline REAL NOT NULL
) WITHOUT ROWID;

-- One row: the present boot of the machine, and when the file was first opened after it.
CREATE TABLE clocks (
    boot TEXT NOT NULL PRIMARY KEY, ahead REAL NOT NULL, opened REAL NOT NULL
);
