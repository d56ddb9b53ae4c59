"""The statements of `ProcrastinateEngine` on procrastinate's tables, by the database's clock."""

from typing import Final, LiteralString

SUBMIT: Final = """
INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
SELECT %(queue)s::varchar, %(task)s::varchar, %(id)s::text, jsonb_build_object('id', %(id)s::text),
       CASE WHEN %(delay)s::float > 0 THEN now() + make_interval(secs => %(delay)s::float) END
WHERE NOT EXISTS (
    SELECT FROM procrastinate_jobs
    WHERE status = 'doing' AND worker_id IS NOT NULL  -- there is an index with this condition
      AND queueing_lock = %(id)s::text AND task_name = %(task)s::varchar)
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
"""

CANCEL: Final = """
WITH waiting AS (
    DELETE FROM procrastinate_jobs
    WHERE status = 'todo' AND queueing_lock = %(id)s::text AND task_name = %(task)s::varchar)
UPDATE procrastinate_jobs SET abort_requested = true
WHERE status = 'doing' AND worker_id IS NOT NULL AND NOT abort_requested
  AND queueing_lock = %(id)s::text AND task_name = %(task)s::varchar
"""

# Rows that run, replaced by new ones that wait. Those that were cancelled are only removed.
_REPLACE: Final[LiteralString] = """
WITH stale AS (
    DELETE FROM procrastinate_jobs WHERE status = 'doing' AND id IN ({})
    RETURNING queue_name, task_name, priority, queueing_lock, args, attempts, abort_requested)
INSERT INTO procrastinate_jobs
       (queue_name, task_name, priority, queueing_lock, args, attempts, scheduled_at)
SELECT queue_name, task_name, priority, queueing_lock, args, attempts + 1,
       CASE WHEN %(delay)s::float > 0 THEN now() + make_interval(secs => %(delay)s::float) END
FROM stale WHERE NOT abort_requested
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
"""
RELEASE: Final = _REPLACE.format("""
    SELECT id FROM procrastinate_jobs
    WHERE id = ANY(%(ids)s::bigint[]) AND worker_id = %(worker)s FOR UPDATE""")
_STALE: Final[LiteralString] = """
    SELECT job.id FROM procrastinate_jobs job
    {}
      AND job.status = 'doing' AND job.task_name = %(task)s::varchar
      AND job.queue_name = ANY(%(queues)s::varchar[])
      -- If this worker has no recent heartbeat either, then the database was suspended.
      AND EXISTS (SELECT FROM procrastinate_workers
          WHERE id = %(worker)s
            AND last_heartbeat > now() - make_interval(secs => %(lease)s::float * 2 / 3))
    FOR UPDATE OF job SKIP LOCKED"""
TAKE_OVER: Final = _REPLACE.format(
    _STALE.format("""
    JOIN procrastinate_workers worker ON worker.id = job.worker_id
    WHERE job.worker_id IS NOT NULL  -- there is an index with this condition
      AND worker.last_heartbeat < now() - make_interval(secs => %(lease)s::float)""")
)
# The rows of workers that are not in the table of workers any more. No index fits: all rows of the
# queues are read.
TAKE_OVER_REMOVED: Final = _REPLACE.format(_STALE.format("WHERE job.worker_id IS NULL"))

ACKNOWLEDGE: Final = """
DELETE FROM procrastinate_jobs WHERE id = %(id)s AND status = 'doing' AND worker_id = %(worker)s
"""

HELD: Final = """
SELECT id, abort_requested FROM procrastinate_jobs
WHERE status = 'doing' AND worker_id = %(worker)s
"""

BACKLOG: Final = """
WITH rows AS (
    SELECT id, status, scheduled_at FROM procrastinate_jobs
    WHERE queue_name = %(queue)s AND task_name = %(task)s AND status IN ('todo', 'doing'))
SELECT count(*) FILTER (WHERE status = 'todo') AS waiting,
       count(*) FILTER (WHERE status = 'doing') AS held,
       extract(epoch FROM now() - (
           SELECT coalesce(first.scheduled_at, event.at) FROM rows first
           JOIN procrastinate_events event ON event.job_id = first.id AND event.type = 'deferred'
           WHERE status = 'todo' AND coalesce(scheduled_at, now()) <= now()
           ORDER BY first.id LIMIT 1))::float AS age
FROM rows
"""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('genmcp.procrastinate', 0))"
"""Held by a transaction that creates procrastinate's tables."""

EXISTS: Final = "SELECT to_regclass('procrastinate_jobs') IS NOT NULL"
