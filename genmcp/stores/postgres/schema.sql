-- Version 2 of the schema of a PostgresStore. "genmcp." stands for the name of the schema, also in
-- the name of the channel, genmcp.news.
--
-- Times are seconds since 1970, by the clock of the server. Every function takes p_now, which is
-- null except in tests.
--
-- Locks: a function that changes a record or log holds the advisory lock of its subject until the end
-- of the transaction (genmcp.lock_of). A call takes all locks of its subjects at once, in the order of
-- their numbers; later ones are only tried. The counters in genmcp.accounts are written last, in
-- the order of their names. Deadlocks can therefore hardly happen, and the caller repeats a
-- transaction that one has ended.

CREATE TABLE genmcp.meta (version int NOT NULL);

-- Numbers the creations of records and logs. A record that is created begins with the version
-- (number << 20) + 1, a log with the event id (number << 20) + 1. So neither continues where an
-- earlier one of the same name has been. After a million changes of one record or log the sequence
-- is advanced past its number (genmcp.next_id). It begins with the time in milliseconds, so that a
-- schema that is created again does not reuse numbers.
CREATE SEQUENCE genmcp.creations;
SELECT setval('genmcp.creations', (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- sweep_at is at most deadline, and the only column of time with an index: a write that extends the
-- deadline leaves it, so that PostgreSQL need not write the indexes (heap-only tuples). The sweep
-- moves it on.
CREATE TABLE genmcp.records (
    key text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    deadline float8 NOT NULL,
    sweep_at float8 NOT NULL,
    client text COLLATE "C" NOT NULL,
    labels text[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 80);
CREATE INDEX records_sweep ON genmcp.records (sweep_at) WHERE sweep_at < 'infinity';

CREATE TABLE genmcp.labels (
    label text COLLATE "C",
    key text COLLATE "C",
    PRIMARY KEY (label, key)
);

-- base identifies the log among all of its name. All events after floor are present; last is the id
-- of the newest event that the log ever had. The row of an expired log stays for an hour.
CREATE TABLE genmcp.logs (
    name text COLLATE "C" PRIMARY KEY,
    base bigint NOT NULL,
    floor bigint NOT NULL,
    last bigint NOT NULL,
    held int NOT NULL,
    size bigint NOT NULL,
    deadline float8 NOT NULL,
    sweep_at float8 NOT NULL,
    client text COLLATE "C" NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX logs_sweep ON genmcp.logs (sweep_at);

CREATE TABLE genmcp.events (
    log bigint,
    id bigint,
    data bytea NOT NULL,
    PRIMARY KEY (log, id)
);

-- The usage of an account is the sum of its rows. Each connection counts in a row of its own (up to
-- 16), so that writes of one client do not wait for each other. The name '' counts everything.
CREATE TABLE genmcp.accounts (
    name text COLLATE "C",
    shard int,
    entries bigint NOT NULL,
    size bigint NOT NULL,
    PRIMARY KEY (name, shard)
) WITH (fillfactor = 50);
CREATE INDEX accounts_merge ON genmcp.accounts (shard, name) WHERE entries <= 0;

-- A due delivery has a turn, and deliveries are claimed in the order of turns: see deliveries.py.
-- node: the holder of its lease.
CREATE TABLE genmcp.deliveries (
    id text COLLATE "C" PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    due float8 NOT NULL,
    turn bigint,
    node text
);
CREATE INDEX deliveries_turn ON genmcp.deliveries (queue, turn, number) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_owner ON genmcp.deliveries (queue, owner, turn) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_due ON genmcp.deliveries (queue, due, number) WHERE turn IS NULL;
-- Those whose lease has expired, and which no process has claimed yet.
CREATE INDEX deliveries_expired ON genmcp.deliveries (queue)
    WHERE turn IS NOT NULL AND node IS NOT NULL;

CREATE TYPE genmcp.growth AS (client text, entries bigint, size bigint);

CREATE FUNCTION genmcp.clock(p_now float8) RETURNS float8 LANGUAGE sql AS $$
    SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::float8)
$$;

CREATE FUNCTION genmcp.lock_of(p_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('genmcp.' || split_part(p_name, '#', 1), 0)
$$;

CREATE FUNCTION genmcp.next_id(p_last bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF (p_last + 1) & 1048575 = 0 THEN
        WHILE nextval('genmcp.creations') <= (p_last + 1) >> 20 LOOP
        END LOOP;
    END IF;
    RETURN p_last + 1;
END
$$;

-- The accounts that count an entry of a client, as in accounts.py.
CREATE FUNCTION genmcp.accounts_of(p_client text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_client = '' THEN ARRAY['']
                WHEN p_client LIKE 'address %' THEN ARRAY[p_client, 'anonymous', '']
                ELSE ARRAY[p_client, ''] END
$$;

CREATE FUNCTION genmcp.count_growth(p_growth genmcp.growth[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO genmcp.accounts AS a (name, shard, entries, size)
    SELECT name, pg_backend_pid() % 16, sum(g.entries), sum(g.size)
    FROM unnest(p_growth) AS g, unnest(genmcp.accounts_of(g.client)) AS name
    GROUP BY name
    HAVING sum(g.entries) <> 0 OR sum(g.size) <> 0
    ORDER BY name
    ON CONFLICT (name, shard) DO UPDATE
    SET entries = a.entries + excluded.entries, size = a.size + excluded.size;
END
$$;

-- Perform writes, each of them completely or not at all, and return the failures as a JSON array.
--
-- p_writes: a JSON array. Each write has operations "o" (see below), limits "a" (genmcp.excess), and
--   "k": the growth in bytes up to which no limit of bytes applies.
-- p_values: the values and data of all operations in order.
-- p_subjects: all subjects, each once.
-- p_until: the time of the server after which nothing may be written any more.
-- p_news: what the listening processes are notified of; empty: nothing.
CREATE FUNCTION genmcp.apply(
    p_writes jsonb, p_values bytea[], p_subjects text[], p_until float8, p_now float8, p_news text
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    v_now float8;
    v_write record;
    v_op record;
    v_record record;
    v_value int := 0;
    v_first int;
    v_there boolean;
    v_live boolean;
    v_version bigint;
    v_deadline float8;
    v_client text;
    v_size bigint;
    v_written text[];
    v_growth genmcp.growth[];
    v_batch genmcp.growth[] := '{}';
    v_failure jsonb;
    v_failures jsonb;
    v_swept boolean := false;
BEGIN
    PERFORM pg_advisory_xact_lock(number)
    FROM (SELECT DISTINCT genmcp.lock_of(subject) AS number FROM unnest(p_subjects) AS subject
          ORDER BY 1) AS locks;
    -- Checked with all locks held. A call that comes too late, because it stayed in a buffer while
    -- this server was suspended, is rejected: its caller has given up, and a later write to the
    -- same subject may have been acknowledged. One that comes in time is completed before any
    -- later write, because that waits for the lock.
    IF extract(epoch FROM clock_timestamp()) > p_until THEN
        RAISE EXCEPTION 'the write reached the server too late' USING ERRCODE = 'GM002';
    END IF;
    v_now := genmcp.clock(p_now);

    FOR v_write IN
        SELECT ordinality::int - 1 AS number, value -> 'o' AS operations, value -> 'a' AS limits,
               (value ->> 'k')::bigint AS slack
        FROM jsonb_array_elements(p_writes) WITH ORDINALITY
    LOOP
        v_first := v_value;
        -- Twice if there is no room: the second time after a sweep, the only one of this call, which
        -- stays although the write may be undone.
        LOOP
            v_value := v_first;
            v_growth := '{}';
            v_written := '{}';
            BEGIN
                -- k: p(ut), a(ppend) or d(elete); n: the key or log; t: ttl; e: expect; c: client;
                -- l: labels; m, b: the maximum numbers of events and bytes.
                FOR v_op IN
                    SELECT * FROM jsonb_to_recordset(v_write.operations) AS operation(
                        k text, n text, t float8, e bigint, c text, l text[], m int, b bigint)
                LOOP
                    IF v_op.k = 'a' THEN
                        v_value := v_value + 1;
                        v_written := v_written || v_op.n;
                        v_growth := v_growth || genmcp.append_event(
                            v_op.n, p_values[v_value], v_now, v_op.t, v_op.c, v_op.m, v_op.b);
                        CONTINUE;
                    END IF;
                    SELECT version, deadline, client, labels,
                           octet_length(key) + octet_length(value) AS size
                    INTO v_record FROM genmcp.records WHERE key = v_op.n;
                    v_there := FOUND;
                    v_live := v_there AND v_record.deadline > v_now;
                    v_version := CASE WHEN v_live THEN v_record.version ELSE 0 END;
                    IF v_op.e <> v_version THEN
                        v_failure := jsonb_build_object(
                            'n', v_op.n, 'e', v_op.e, 'v', v_version);
                        RAISE EXCEPTION USING ERRCODE = 'GM001';
                    END IF;
                    IF v_there THEN
                        v_growth := v_growth
                            || (v_record.client, -1, -v_record.size)::genmcp.growth;
                        IF v_record.labels <> '{}' AND v_record.labels IS DISTINCT FROM v_op.l THEN
                            DELETE FROM genmcp.labels
                            WHERE label = ANY (v_record.labels) AND key = v_op.n;
                        END IF;
                    END IF;
                    IF v_op.k = 'd' THEN
                        DELETE FROM genmcp.records WHERE key = v_op.n;
                        CONTINUE;
                    END IF;
                    v_value := v_value + 1;
                    v_deadline := coalesce(v_now + v_op.t, 'infinity');
                    v_size := octet_length(v_op.n) + octet_length(p_values[v_value]);
                    v_client := CASE WHEN v_live AND v_op.c = '' THEN v_record.client
                                     ELSE v_op.c END;
                    v_growth := v_growth || (v_client, 1, v_size)::genmcp.growth;
                    v_version := CASE WHEN v_live THEN genmcp.next_id(v_version)
                                      ELSE (nextval('genmcp.creations') << 20) + 1 END;
                    IF v_op.l <> '{}' AND (NOT v_there OR v_record.labels <> v_op.l) THEN
                        INSERT INTO genmcp.labels SELECT DISTINCT label, v_op.n
                        FROM unnest(v_op.l) AS label ON CONFLICT DO NOTHING;
                    END IF;
                    IF v_there THEN
                        UPDATE genmcp.records
                        SET value = p_values[v_value], version = v_version, deadline = v_deadline,
                            sweep_at = least(sweep_at, v_deadline), client = v_client,
                            labels = v_op.l
                        WHERE key = v_op.n;
                    ELSE
                        INSERT INTO genmcp.records
                        VALUES (v_op.n, p_values[v_value], v_version, v_deadline, v_deadline,
                                v_client, v_op.l);
                    END IF;
                END LOOP;

                v_failure := genmcp.excess(v_write.limits, v_write.slack, v_growth, v_batch);
                IF v_failure IS NOT NULL THEN
                    IF NOT v_swept THEN
                        RAISE EXCEPTION USING ERRCODE = 'GM003';
                    END IF;
                    v_growth := genmcp.shorten_logs(
                        v_written, v_write.limits, v_write.slack, v_growth, v_batch);
                    v_failure := genmcp.excess(v_write.limits, v_write.slack, v_growth, v_batch);
                    IF v_failure IS NOT NULL THEN
                        RAISE EXCEPTION USING ERRCODE = 'GM001';
                    END IF;
                END IF;
                v_batch := v_batch || v_growth;
            EXCEPTION WHEN SQLSTATE 'GM003' THEN
                v_swept := true;
                PERFORM genmcp.sweep(p_now);
                CONTINUE;
            WHEN SQLSTATE 'GM001' THEN
                v_failures := coalesce(v_failures, '[]')
                    || (v_failure || jsonb_build_object('w', v_write.number));
                SELECT v_first + count(*) INTO v_value FROM jsonb_array_elements(v_write.operations)
                    AS operation WHERE operation ->> 'k' <> 'd';
            END;
            EXIT;
        END LOOP;
    END LOOP;

    IF p_news <> '' THEN
        PERFORM pg_notify('genmcp.news', p_news);
    END IF;
    PERFORM genmcp.count_growth(v_batch);
    RETURN v_failures;
END
$$;

-- Append an event; return what the log has grown by.
CREATE FUNCTION genmcp.append_event(
    p_name text, p_data bytea, p_now float8, p_ttl float8, p_client text, p_keep int,
    p_keep_bytes bigint
) RETURNS genmcp.growth[] LANGUAGE plpgsql AS $$
DECLARE
    v_log genmcp.logs;
    v_event record;
    v_growth genmcp.growth[] := '{}';
    v_size bigint := octet_length(p_data);
    v_client text;
BEGIN
    SELECT * INTO v_log FROM genmcp.logs WHERE name = p_name;
    IF NOT FOUND THEN
        v_log.base := nextval('genmcp.creations') << 20;
        INSERT INTO genmcp.logs
        VALUES (p_name, v_log.base, v_log.base, v_log.base + 1, 1, v_size, p_now + p_ttl,
                p_now + p_ttl, p_client);
        INSERT INTO genmcp.events VALUES (v_log.base, v_log.base + 1, p_data);
        RETURN ARRAY[(p_client, 1, v_size)::genmcp.growth];
    END IF;
    IF v_log.deadline <= p_now AND v_log.held > 0 THEN
        DELETE FROM genmcp.events WHERE log = v_log.base;
        v_growth := v_growth || (v_log.client, -v_log.held, -v_log.size)::genmcp.growth;
        v_log.floor := v_log.last;
        v_log.held := 0;
        v_log.size := 0;
    END IF;
    v_client := CASE WHEN v_log.held = 0 OR v_log.client = '' THEN p_client ELSE v_log.client END;
    IF v_log.held > 0 AND v_client <> v_log.client THEN
        -- The first client counts for the events before it, too.
        v_growth := v_growth || ('', -v_log.held, -v_log.size)::genmcp.growth
                             || (v_client, v_log.held, v_log.size)::genmcp.growth;
    END IF;
    v_log.last := genmcp.next_id(v_log.last);
    INSERT INTO genmcp.events VALUES (v_log.base, v_log.last, p_data);
    v_growth := v_growth || (v_client, 1, v_size)::genmcp.growth;
    v_log.held := v_log.held + 1;
    v_log.size := v_log.size + v_size;
    WHILE v_log.held > p_keep OR (v_log.size > p_keep_bytes AND v_log.held > 1) LOOP
        DELETE FROM genmcp.events
        WHERE log = v_log.base AND id = (
            SELECT min(id) FROM genmcp.events  -- a scan from 0 would pass over deleted events
            WHERE log = v_log.base AND id > v_log.floor)
        RETURNING id, octet_length(data) AS size INTO v_event;
        v_log.floor := v_event.id;
        v_log.held := v_log.held - 1;
        v_log.size := v_log.size - v_event.size;
        v_growth := v_growth || (v_client, -1, -v_event.size)::genmcp.growth;
    END LOOP;
    UPDATE genmcp.logs
    SET floor = v_log.floor, last = v_log.last, held = v_log.held, size = v_log.size,
        deadline = p_now + p_ttl, sweep_at = least(sweep_at, p_now + p_ttl), client = v_client
    WHERE name = p_name;
    RETURN v_growth;
END
$$;

-- Return an account that a write fills beyond its limit: name "n", and usage before the write ("e",
-- "s"); null if there is room.
--
-- p_limits: a JSON array of accounts with name "n", and limits of entries "e" (null: none)
--   and of bytes "s".
CREATE FUNCTION genmcp.excess(
    p_limits jsonb, p_slack bigint, p_growth genmcp.growth[], p_batch genmcp.growth[]
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    v_excess jsonb;
BEGIN
    SELECT jsonb_build_object(
        'n', a.n, 'e', used.entries + batch.entries, 's', used.size + batch.size)
    INTO v_excess
    FROM jsonb_to_recordset(p_limits) AS a(n text, e float8, s float8)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(entries), 0)::bigint AS entries, coalesce(sum(size), 0)::bigint AS size
        FROM unnest(p_growth) WHERE a.n = ANY (genmcp.accounts_of(client))) AS growth
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(entries), 0)::bigint AS entries, coalesce(sum(size), 0)::bigint AS size
        FROM unnest(p_batch) WHERE a.n = ANY (genmcp.accounts_of(client))) AS batch
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(entries), 0)::bigint AS entries, coalesce(sum(size), 0)::bigint AS size
        FROM genmcp.accounts WHERE name = a.n) AS used
    WHERE (growth.entries > 0 AND used.entries + batch.entries + growth.entries > a.e)
        OR (growth.size > p_slack AND used.size + batch.size + growth.size > a.s)
    LIMIT 1;
    RETURN v_excess;
END
$$;

-- Drop the oldest events of logs, but never the newest one, until a write has room; the other
-- parameters: see genmcp.excess. Return p_growth, less what was dropped.
CREATE FUNCTION genmcp.shorten_logs(
    p_names text[], p_limits jsonb, p_slack bigint, p_growth genmcp.growth[],
    p_batch genmcp.growth[]
) RETURNS genmcp.growth[] LANGUAGE plpgsql AS $$
DECLARE
    v_growth genmcp.growth[] := p_growth;
    v_event record;
BEGIN
    FOR v_event IN
        SELECT base, client, id, octet_length(data) AS size
        FROM genmcp.logs JOIN genmcp.events ON log = base
        WHERE name = ANY (p_names) AND id < last ORDER BY id
    LOOP
        EXIT WHEN genmcp.excess(p_limits, p_slack, v_growth, p_batch) IS NULL;
        DELETE FROM genmcp.events WHERE log = v_event.base AND id = v_event.id;
        UPDATE genmcp.logs SET floor = v_event.id, held = held - 1, size = size - v_event.size
        WHERE base = v_event.base AND name = ANY (p_names);
        v_growth := v_growth || (v_event.client, -1, -v_event.size)::genmcp.growth;
    END LOOP;
    RETURN v_growth;
END
$$;

-- Remove some expired records and logs; return whether there may be more. A subject that is being
-- written is left for the next time.
CREATE FUNCTION genmcp.sweep(p_now float8) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now float8 := genmcp.clock(p_now);
    v_name text;
    v_record record;
    v_log genmcp.logs;
    v_growth genmcp.growth[] := '{}';
    v_count int := 0;
BEGIN
    FOR v_name IN
        SELECT key FROM genmcp.records WHERE sweep_at <= v_now ORDER BY sweep_at LIMIT 200
    LOOP
        v_count := v_count + 1;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(genmcp.lock_of(v_name));
        UPDATE genmcp.records SET sweep_at = deadline WHERE key = v_name AND deadline > v_now;
        DELETE FROM genmcp.records WHERE key = v_name AND deadline <= v_now
        RETURNING client, labels, octet_length(key) + octet_length(value) AS size INTO v_record;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM genmcp.labels WHERE label = ANY (v_record.labels) AND key = v_name;
        v_growth := v_growth || (v_record.client, -1, -v_record.size)::genmcp.growth;
    END LOOP;
    FOR v_name IN
        SELECT name FROM genmcp.logs WHERE sweep_at <= v_now ORDER BY sweep_at LIMIT 100
    LOOP
        v_count := v_count + 2;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(genmcp.lock_of(v_name));
        SELECT * INTO v_log FROM genmcp.logs WHERE name = v_name;
        CONTINUE WHEN NOT FOUND;
        IF v_log.deadline > v_now THEN
            UPDATE genmcp.logs SET sweep_at = deadline WHERE name = v_name;
            CONTINUE;
        END IF;
        IF v_log.held > 0 THEN
            DELETE FROM genmcp.events WHERE log = v_log.base;
            v_growth := v_growth || (v_log.client, -v_log.held, -v_log.size)::genmcp.growth;
        END IF;
        IF v_log.deadline + 3600 > v_now THEN
            UPDATE genmcp.logs
            SET floor = last, held = 0, size = 0, client = '', sweep_at = deadline + 3600
            WHERE name = v_name;
        ELSE
            DELETE FROM genmcp.logs WHERE name = v_name;
        END IF;
    END LOOP;
    PERFORM genmcp.count_growth(v_growth);
    PERFORM genmcp.merge_counters(floor(random() * 16)::int);
    RETURN v_count >= 200;
END
$$;

-- Merge the counters of accounts that have one of 0 or less in p_shard: what one connection has added,
-- another one may have removed. Counters that another transaction is changing are left as they are:
-- the sum of the others stays the same.
CREATE FUNCTION genmcp.merge_counters(p_shard int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_name text;
BEGIN
    FOR v_name IN
        SELECT name FROM genmcp.accounts WHERE shard = p_shard AND entries <= 0 AND name <> ''
        LIMIT 200
    LOOP
        WITH locked AS MATERIALIZED (
            SELECT shard, entries, size FROM genmcp.accounts WHERE name = v_name
            FOR UPDATE SKIP LOCKED
        ), total AS (
            SELECT min(shard) AS kept, sum(entries) AS entries, sum(size) AS size FROM locked
        ), removed AS (
            DELETE FROM genmcp.accounts AS a USING locked, total
            WHERE a.name = v_name AND a.shard = locked.shard
                AND (a.shard <> total.kept OR (total.entries = 0 AND total.size = 0))
        )
        UPDATE genmcp.accounts AS a SET entries = total.entries, size = total.size FROM total
        WHERE a.name = v_name AND a.shard = total.kept
            AND (total.entries <> 0 OR total.size <> 0);
    END LOOP;
END
$$;

CREATE FUNCTION genmcp.next_turn(p_queue text, p_owner text) RETURNS bigint LANGUAGE sql AS $$
    SELECT greatest(
        (SELECT max(turn) + 1 FROM genmcp.deliveries
         WHERE queue = p_queue AND owner = p_owner AND turn IS NOT NULL),
        (SELECT min(turn) FROM genmcp.deliveries WHERE queue = p_queue AND turn IS NOT NULL),
        0)
$$;

-- Tell the listening processes that the deliveries of queues have changed.
CREATE FUNCTION genmcp.tell_queues(p_queues text[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('genmcp.news', coalesce(
        (SELECT string_agg('q' || left(md5(queue), 8), ' ')
         FROM (SELECT DISTINCT unnest(p_queues) AS queue LIMIT 700) AS queues), ''))
$$;

-- Put deliveries that are not there: a JSON array with id "i", queue "q", delay "d" and owner "o".
CREATE FUNCTION genmcp.put(p_puts jsonb, p_now float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now float8 := genmcp.clock(p_now);
    v_put record;
    v_queues text[] := '{}';
BEGIN
    FOR v_put IN
        SELECT * FROM jsonb_to_recordset(p_puts) AS put(i text, q text, d float8, o text)
    LOOP
        INSERT INTO genmcp.deliveries (id, queue, owner, due, turn)
        VALUES (v_put.i, v_put.q, v_put.o, v_now + v_put.d,
                CASE WHEN v_put.d <= 0 THEN genmcp.next_turn(v_put.q, v_put.o) END)
        ON CONFLICT (id) DO NOTHING;
        IF FOUND THEN
            v_queues := v_queues || v_put.q;
        END IF;
    END LOOP;
    IF v_queues <> '{}' THEN
        PERFORM genmcp.tell_queues(v_queues);
    END IF;
END
$$;

-- Return when a delivery is due: 0 if one is due now, null if the queues are empty.
CREATE FUNCTION genmcp.next_due(p_queues text[], p_full text[], p_now float8)
RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    v_queue text;
    v_owner text;
    v_due float8;
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        -- From owner to owner: one of those in p_full may have thousands of deliveries.
        v_owner := (SELECT min(owner) FROM genmcp.deliveries
                    WHERE queue = v_queue AND turn IS NOT NULL);
        WHILE v_owner = ANY (p_full) LOOP
            v_owner := (SELECT min(owner) FROM genmcp.deliveries
                        WHERE queue = v_queue AND turn IS NOT NULL AND owner > v_owner);
        END LOOP;
        IF v_owner IS NOT NULL THEN
            RETURN 0;
        END IF;
        v_due := least(v_due, (SELECT min(due) FROM genmcp.deliveries
                               WHERE queue = v_queue AND turn IS NULL));
    END LOOP;
    RETURN CASE WHEN v_due IS NOT NULL THEN greatest(v_due - genmcp.clock(p_now), 0) END;
END
$$;

-- Claim due deliveries. p_started: when the caller began, by the clock of the server; null: not
-- checked. p_owners, p_held: how many deliveries of these owners p_node has; p_most: the limit.
-- Sorts are disabled: the first deliveries are read in the order of deliveries_turn. Otherwise the
-- planner, which does not know how many owners are in p_full, sorts the whole queue for each claim.
CREATE FUNCTION genmcp.claim(
    p_queues text[], p_node text, p_lease float8, p_limit int, p_takeover_delay float8,
    p_started float8, p_most bigint, p_owners text[], p_held bigint[], p_full text[],
    p_now float8
) RETURNS TABLE (id text, queue text, owner text) LANGUAGE plpgsql
SET enable_sort = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now float8;
    v_extension float8 := p_takeover_delay;
    v_late record;
BEGIN
    -- Without a transaction id: an idle worker writes nothing.
    IF genmcp.next_due(p_queues, p_full, p_now) IS DISTINCT FROM 0 THEN
        RETURN;
    END IF;
    v_now := genmcp.clock(p_now);
    IF extract(epoch FROM clock_timestamp()) - p_started > p_lease / 3 THEN
        v_extension := p_lease;
    END IF;
    IF v_extension > 0 THEN
        -- Two statements, each with an index that fits: most deliveries wait, and are not held.
        WITH held AS MATERIALIZED (
            SELECT id FROM genmcp.deliveries
            WHERE queue = ANY (p_queues) AND turn IS NULL AND node IS NOT NULL AND due <= v_now
            FOR UPDATE SKIP LOCKED)
        UPDATE genmcp.deliveries AS d SET due = v_now + v_extension
        FROM held WHERE d.id = held.id;
        WITH held AS MATERIALIZED (
            SELECT id FROM genmcp.deliveries
            WHERE queue = ANY (p_queues) AND turn IS NOT NULL AND node IS NOT NULL
            FOR UPDATE SKIP LOCKED)
        UPDATE genmcp.deliveries AS d SET due = v_now + v_extension, turn = NULL
        FROM held WHERE d.id = held.id;
    END IF;
    FOR v_late IN
        SELECT number, id, queue, owner FROM genmcp.deliveries
        WHERE queue = ANY (p_queues) AND turn IS NULL AND due <= v_now
        ORDER BY due, number LIMIT greatest(p_limit, 100) FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE genmcp.deliveries SET turn = genmcp.next_turn(v_late.queue, v_late.owner)
        WHERE id = v_late.id;
    END LOOP;
    -- Of several queues, the one whose first delivery has been due for longest comes first: that is
    -- the order of the latest due time up to each delivery.
    RETURN QUERY
    WITH head AS MATERIALIZED (
        SELECT due_now.* FROM unnest(p_queues) AS wanted(name) CROSS JOIN LATERAL (
            SELECT d.id, d.number, d.queue, d.owner, d.due, d.turn FROM genmcp.deliveries AS d
            WHERE d.queue = wanted.name AND d.turn IS NOT NULL AND d.owner <> ALL (p_full)
            ORDER BY d.turn, d.number LIMIT p_limit FOR UPDATE SKIP LOCKED
        ) AS due_now
    ), merged AS (
        SELECT head.*,
            max(head.due) OVER (PARTITION BY head.queue ORDER BY head.turn, head.number) AS latest
        FROM head
    ), ranked AS (
        SELECT merged.*,
            row_number() OVER (PARTITION BY merged.owner
                               ORDER BY merged.latest, merged.turn, merged.number) AS rank
        FROM merged
    ), chosen AS (
        SELECT ranked.* FROM ranked
        WHERE ranked.owner = '' OR ranked.rank + coalesce(
            p_held[array_position(p_owners, ranked.owner)], 0) <= p_most
        ORDER BY ranked.latest, ranked.turn, ranked.number LIMIT p_limit
    ), claimed AS (
        UPDATE genmcp.deliveries AS d SET node = p_node, due = v_now + p_lease, turn = NULL
        FROM chosen WHERE d.id = chosen.id RETURNING chosen.*
    )
    SELECT claimed.id, claimed.queue, claimed.owner FROM claimed
    ORDER BY claimed.latest, claimed.turn, claimed.number;
END
$$;
