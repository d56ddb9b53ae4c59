"""Connections to the server, and its errors. The only module that imports psycopg."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final, TypeAlias

from msgspec import Struct

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores.accounts import Capacity
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages

try:
    import psycopg
    from psycopg import waiting
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
except ImportError as error:
    raise missing_extra("PostgresStore", "postgres", error) from error

SCHEMA_VERSION: Final = 2
"""The version of schema.sql."""

CLOCK_ERROR: Final = 1.0
"""Seconds by which the estimate of the server's clock may be wrong."""

Row: TypeAlias = tuple[Any, ...]

_WAIT_INTERVAL: Final = 60.0  # seconds; psycopg would otherwise wake the process every 0.1 s
_MEASURE_INTERVAL: Final = 30.0  # seconds between measurements of the server's clock
_RETRIED: Final = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_TOO_LATE: Final = "GM002"  # raised by genmcp.apply
_READ_ONLY: Final = "25006"
_STATEMENT_TIMEOUT: Final = "57014"
_UNDEFINED: Final = {"3F000", "42883", "42P01"}  # schema, function, table

# Sets up the session, and reads properties of the server, in one round trip. Each statement is
# planned once, because planning takes longer than execution. Plans that read a whole table are
# disabled: PostgreSQL makes them while a table is small, and would use them when it has grown.
# `synchronous_commit=off` is replaced: it loses acknowledged writes in a crash.
_HELLO: Final = """
    SELECT set_config('statement_timeout', %(timeout)s, false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('jit', 'off', false),
        set_config('plan_cache_mode', 'force_generic_plan', false),
        set_config('enable_seqscan', 'off', false),
        set_config('enable_hashjoin', 'off', false),
        set_config('enable_mergejoin', 'off', false),
        set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
        pg_backend_pid(), pg_postmaster_start_time(),
        (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())),
        pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,
        to_regclass(%(meta)s) IS NOT NULL
"""
# The number of rows is 0 if the backend no longer exists.
_TERMINATE: Final = """
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_get_activity(%(pid)s)
    WHERE backend_start = %(started)s
"""


class PostgresOptions(Struct, frozen=True):
    """The options of a `PostgresStore`."""

    url: str
    schema: str
    capacity: Capacity
    timeout: float
    connect_timeout: float
    readers: int
    follow_refresh: float
    clock: Callable[[], float] | None
    outages: Outages

    @property
    def address(self) -> str:
        """The server and database, without the password, for messages."""
        return address_of(self.url)

    def in_schema(self, sql: str) -> str:
        """Return a statement for the schema of the store, instead of `genmcp`."""
        return sql.replace("genmcp.", f"{self.schema}.")

    @property
    def now(self) -> float | None:
        """The time of a clock that replaces the server's, None without one."""
        return self.clock() if self.clock else None


class ServerClock:
    """An estimate of the server's clock. Owned by a store, and shared by its connections."""

    def __init__(self) -> None:
        self._ahead = time.time() - steady()
        self._measured = -inf  # by `steady`
        self.was_reached = False

    @property
    def is_stale(self) -> bool:
        """Whether the time should be measured again."""
        return steady() - self._measured > _MEASURE_INTERVAL

    def doubt(self) -> None:
        """Mark the estimate as stale: the server's clock may have been set."""
        self._measured = -inf

    def now(self) -> float:
        """Return the server's time, at most `CLOCK_ERROR` seconds wrong once it was measured."""
        return steady() + self._ahead

    async def measure(self, connection: "PostgresConnection") -> None:
        """Ask the server for its time; an answer that took too long is not used."""
        sent = steady()
        ((server,),) = await connection.fetch(
            "SELECT extract(epoch FROM clock_timestamp())::float8"
        )
        received = steady()
        self.was_reached = True
        # The server read its clock in the middle, or up to half of the time before or after it.
        if received - sent < CLOCK_ERROR:
            self._ahead = server - (sent + received) / 2
            self._measured = received
        else:
            self._measured = received - _MEASURE_INTERVAL + CLOCK_ERROR  # again after a second


class PostgresConnection(psycopg.AsyncConnection[Row]):
    """A connection that is closed if a statement on it is interrupted.

    psycopg would ask the server to cancel the statement, and wait for that: forever, if the server
    is suspended.
    """

    pid: int
    started: tuple[object, object]  # the server and this backend: identifies it with `pid`

    async def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        """Run a generator of psycopg that waits for the server."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=_WAIT_INTERVAL)
        except BaseException as error:
            under_way = self.pgconn.transaction_status == TransactionStatus.ACTIVE
            if under_way and not isinstance(error, psycopg.Error):
                self.pgconn.finish()
            raise

    async def fetch(
        self, sql: str, parameters: Mapping[str, object] | None = None
    ) -> Sequence[Row]:
        """Execute one statement, and return its rows."""
        cursor = await self.execute(sql, parameters, prepare=True, binary=True)
        return await cursor.fetchall() if cursor.description else ()

    async def run_script(self, sql: str) -> None:
        """Execute several statements."""
        await self.execute(sql.encode(), prepare=False)

    def is_broken(self) -> bool:
        """Return whether the server has closed the connection while it was idle."""
        try:
            for _ in range(2):  # without waiting: a last message, and the end
                self.pgconn.consume_input()
        except psycopg.Error:
            return True
        return self.closed

    def end(self) -> None:
        """Close the connection without waiting for the server. From any thread."""
        self.pgconn.finish()

    async def end_other(self, pid: int, started: tuple[object, object]) -> bool:
        """End another backend of the server; return whether it is certain that it has ended."""
        if started[0] != self.started[0]:
            return True  # the server was started since
        if started[1] is None:
            return False
        rows = await self.fetch(_TERMINATE, {"pid": pid, "started": started[1]})
        return all(ended for (ended,) in rows)


async def connect(options: PostgresOptions) -> PostgresConnection:
    """Connect, and check that the server and the schema can be used.

    Raises:
        ConfigurationError: the server rejects the connection, is read-only, or the schema is
            missing or has another version.
        StoreUnavailable: the server could not be reached.
    """
    return await _connect(options, check_schema=True)


@asynccontextmanager
async def session(options: PostgresOptions) -> AsyncIterator[PostgresConnection]:
    """Connect to a server whose schema may be missing, for the duration of the context.

    Raises:
        ConfigurationError: the server rejects the connection or a statement, or is read-only.
        StoreUnavailable: the server could not be reached.
    """
    connection = await _connect(options, check_schema=False)
    try:
        yield connection
    except psycopg.Error as error:
        raise ConfigurationError(f"{options.address}: {_text(error)}") from error
    finally:
        connection.end()


async def _connect(options: PostgresOptions, *, check_schema: bool) -> PostgresConnection:
    parameters: dict[str, Any] = {
        "application_name": "genmcp",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        **conninfo_to_dict(options.url),
    }
    connection: PostgresConnection | None = None
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection = await PostgresConnection.connect(
                make_conninfo("", **parameters), autocommit=True, prepare_threshold=0
            )
            exists = await _greet(connection, options)
            if check_schema:
                await _check_schema(connection, options, exists=exists)
    except BaseException as error:
        if connection is not None:
            connection.end()
        if isinstance(error, TimeoutError):
            raise StoreUnavailable(f"{options.address}: no response to a connection") from error
        if isinstance(error, psycopg.Error):
            raise _refused(options, error) from error
        raise
    return connection


async def _greet(connection: PostgresConnection, options: PostgresOptions) -> bool:
    """Set up the session; return whether the schema exists."""
    timeout = str(int(options.timeout * 1000))
    ((*_, pid, server, backend, read_only, exists),) = await connection.fetch(
        _HELLO, {"timeout": timeout, "meta": f"{options.schema}.meta"}
    )
    # If the ids differ, the backend belongs to a pooler in between, and must not be ended.
    connection.pid = pid if pid == connection.pgconn.backend_pid else 0
    connection.started = (server, backend)
    if connection.info.server_version < 140000:
        raise ConfigurationError(f"{options.address}: PostgreSQL 14 or later is needed")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigurationError(
            f"{options.address}: the encoding of the database is {encoding}, and must be UTF8"
        )
    if read_only:
        raise ConfigurationError(
            f"{options.address} is read-only, such as a replica: name the primary server in the "
            f"URL, or several with target_session_attrs=read-write"
        )
    return bool(exists)


async def _check_schema(
    connection: PostgresConnection, options: PostgresOptions, *, exists: bool
) -> None:
    text, command = f"{options.address}: the schema {options.schema!r}", "genmcp store migrate"
    if not exists:
        raise ConfigurationError(f"{text} does not exist; create it by: {command}")
    ((version,),) = await connection.fetch(f"SELECT max(version) FROM {options.schema}.meta")
    if version < SCHEMA_VERSION:
        raise ConfigurationError(
            f"{text} has version {version}, and this release needs {SCHEMA_VERSION}; bring it up "
            f"to date by: {command}"
        )
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{text} has version {version}, of a newer release: this one needs {SCHEMA_VERSION}. "
            f"Install the newer release of genmcp"
        )


def _refused(options: PostgresOptions, error: psycopg.Error) -> Exception:
    """Return the error for a connection that was not established."""
    text = f"{options.address}: {_text(error)}"
    permanent = ("authentication", "does not exist", "permission denied", "pg_hba.conf", "invalid")
    if error.sqlstate == "42501" or any(word in str(error) for word in permanent):
        return ConfigurationError(f"{text}. Check the URL, the password and the role's rights")
    return StoreUnavailable(text)


def is_lost(error: Exception) -> bool:
    """Return whether the connection is gone, so that the outcome of a statement is unknown."""
    if isinstance(error, TimeoutError):
        return True
    # Errors in class 57P (shutdown, crash) come with the end of the connection.
    state = getattr(error, "sqlstate", None)
    lost = (psycopg.OperationalError, psycopg.InterfaceError)
    return isinstance(error, lost) and (state is None or state.startswith("57P"))


def is_repeatable(error: Exception) -> bool:
    """Return whether the transaction was rolled back because of another one."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _RETRIED


def is_late(error: Exception) -> bool:
    """Return whether the server rejected a write because of its deadline."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _TOO_LATE


def is_of_one(error: Exception) -> bool:
    """Return whether a single one of several combined requests may have caused the error."""
    if isinstance(error, psycopg.OperationalError):
        return error.sqlstate == _STATEMENT_TIMEOUT
    return not isinstance(error, psycopg.InterfaceError | StoreError | ConfigurationError)


def translated(options: PostgresOptions, clock: ServerClock, error: Exception) -> Exception:
    """Return the StoreError for an error of an operation; other errors are returned as they are.

    A server that cannot be used is a ConfigurationError as long as none was used: the process does
    not start. Later it is unavailable: an operator may be moving it.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{options.address}: no response in {options.timeout} seconds")
    if isinstance(error, ConfigurationError):
        return StoreUnavailable(str(error)) if clock.was_reached else error
    if not isinstance(error, psycopg.Error):
        return error
    text = f"{options.address}: {_text(error)}"
    if error.sqlstate in _UNDEFINED:
        text += f"; was the schema {options.schema!r} removed? Run: genmcp store migrate"
    return StoreUnavailable(text)


def is_moved(error: Exception) -> bool:
    """Return whether the server has become read-only: another one may be the primary now."""
    return getattr(error, "sqlstate", None) == _READ_ONLY


def address_of(url: str) -> str:
    """Return the server and database that *url* names, without the password.

    Raises:
        ConfigurationError: *url* is not a connection URL or string.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The message of libpq contains the URL, perhaps with a password.
        raise ConfigurationError(
            "PostgresStore: the URL cannot be parsed; use "
            "postgresql://user:password@host:5432/database (percent-encode special characters)"
        ) from error
    host, port = given.get("host", "localhost"), given.get("port", 5432)
    return f"PostgreSQL at {host}:{port}/{given.get('dbname', '')}"


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
