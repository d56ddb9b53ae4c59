"""Connections to the server, and its errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final, TypeAlias

from msgspec import Struct

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores.accounts import Capacity
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages

try:
    import psycopg
    import psycopg_pool as psycopg_pool  # used by loops.py, which is imported after this module
    from psycopg import waiting
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise missing_extra("PostgresStore", "postgres", error) from error

SCHEMA_VERSION: Final = 2
"""The version of schema.sql."""

CLOCK_ERROR: Final = 1.0
"""Seconds by which the estimate of the server's clock may be wrong."""

Row: TypeAlias = tuple[Any, ...]

_CONNECT_TIMEOUT: Final = 5.0  # seconds for an attempt to connect
_WAIT_INTERVAL: Final = 60.0  # seconds; psycopg would otherwise wake the process every 0.1 s
_MEASURE_INTERVAL: Final = 30.0  # seconds between measurements of the server's clock
_UNDEFINED: Final = {"3F000", "42883", "42P01"}  # schema, function, table
# In messages of the server about a connection, which have no code.
_REFUSALS: Final = ("authentication", "does not exist", "permission denied", "pg_hba", "invalid")
_KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

# Each statement is planned once, because planning takes longer than execution. Plans that read a
# whole table are disabled: PostgreSQL makes them while a table is small, and would use them when it
# has grown. `synchronous_commit=off` is replaced: it loses acknowledged writes in a crash.
_SESSION: Final = """
    SET default_transaction_isolation = 'read committed'; SET jit = off; SET enable_seqscan = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan;
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off'
"""
_PROPERTIES: Final = """
    SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,
        to_regclass(%(meta)s) IS NOT NULL, set_config('statement_timeout', %(timeout)s, false)
"""


class PostgresOptions(Struct, frozen=True):
    """The options of a `PostgresStore`."""

    url: str
    schema: str
    capacity: Capacity
    timeout: float
    connections: int
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
    """An estimate of the server's clock. Owned by a store, and shared by its connections.

    Attributes:
        expires: when to measure again, by `steady`.
        was_reached: whether the server was ever asked.
    """

    def __init__(self) -> None:
        self._ahead = time.time() - steady()
        self.expires = -inf
        self.was_reached = False

    def now(self) -> float:
        """Return the server's time, at most `CLOCK_ERROR` seconds wrong once it was measured."""
        return steady() + self._ahead

    async def measure(self, connection: "PostgresConnection") -> None:
        """Ask the server for its time; an answer that took too long is not used."""
        sent = steady()
        rows = await connection.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
        received = steady()
        self.was_reached = True
        # The server read its clock in the middle, or up to half of the time before or after it.
        if received - sent < CLOCK_ERROR:
            self._ahead = rows[0][0] - (sent + received) / 2
            self.expires = received + _MEASURE_INTERVAL


class PostgresConnection(psycopg.AsyncConnection[Row]):
    """A connection that is closed if a statement on it is interrupted.

    psycopg would ask the server to cancel the statement, and wait for seconds, or forever, if the
    server is suspended.
    """

    @classmethod
    async def connect(cls, conninfo: str = "", *, opening: Any = None, **kwargs: Any) -> Any:
        """Connect; *opening* does it for a pool, which has no other place for it."""
        return await (opening() if opening else super().connect(conninfo, **kwargs))

    async def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        """Run a generator of psycopg that waits for the server."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=_WAIT_INTERVAL)
        except asyncio.CancelledError:
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


async def connect(options: PostgresOptions, *, check_schema: bool = True) -> PostgresConnection:
    """Connect, and check that the server and the schema can be used.

    Raises:
        ConfigurationError: the server rejects the connection, is read-only, or the schema is
            missing or has another version.
        StoreUnavailable: the server could not be reached.
    """
    given = {"application_name": "genmcp", **_KEEPALIVE, **conninfo_to_dict(options.url)}
    connection: PostgresConnection | None = None
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            connection = await PostgresConnection.connect(
                make_conninfo("", **given), autocommit=True, prepare_threshold=0
            )
            await _greet(connection, options, check_schema)
            return connection
    except BaseException as error:
        if connection is not None:
            connection.pgconn.finish()
        if isinstance(error, TimeoutError):
            raise StoreUnavailable(f"{options.address}: no response to a connection") from error
        if not isinstance(error, psycopg.Error):
            raise
        text = f"{options.address}: {_text(error)}"
        if error.sqlstate == "42501" or any(word in str(error) for word in _REFUSALS):
            hint = "Check the URL, the password and the role's rights"
            raise ConfigurationError(f"{text}. {hint}") from error
        raise StoreUnavailable(text) from error


async def _greet(connection: PostgresConnection, options: PostgresOptions, check: bool) -> None:
    """Check the server and, if *check*, the schema; set up the session."""
    timeout, schema = str(int(options.timeout * 1000)), options.schema
    ((read_only, exists, _),) = await connection.fetch(
        _PROPERTIES, {"timeout": timeout, "meta": f"{schema}.meta"}
    )
    version = SCHEMA_VERSION
    if check and exists:
        ((version,),) = await connection.fetch(f"SELECT max(version) FROM {schema}.meta")
    encoding, migrate = connection.info.parameter_status("server_encoding"), "genmcp store migrate"
    of_schema = f": the schema {schema!r} has version {version}, and this release needs"
    faults = {
        ": PostgreSQL 14 or later is needed": connection.info.server_version < 140000,
        f": the encoding of the database is {encoding}, and must be UTF8": encoding != "UTF8",
        " is read-only, such as a replica: name the primary server in the URL, or several with "
        "target_session_attrs=read-write": read_only,
        f": the schema {schema!r} does not exist; create it by: {migrate}": check and not exists,
        f"{of_schema} {SCHEMA_VERSION}; bring it up to date by: {migrate}": version
        < SCHEMA_VERSION,
        f"{of_schema} {SCHEMA_VERSION}: install the newer release": version > SCHEMA_VERSION,
    }
    for fault, found in faults.items():
        if found:
            raise ConfigurationError(f"{options.address}{fault}")
    await connection.run_script(_SESSION)  # last: an old server does not know all settings


@asynccontextmanager
async def session(options: PostgresOptions) -> AsyncIterator[PostgresConnection]:
    """Connect to a server whose schema may be missing, for the duration of the context.

    Raises:
        ConfigurationError: the server rejects the connection or a statement, or is read-only.
        StoreUnavailable: the server could not be reached.
    """
    connection = await connect(options, check_schema=False)
    try:
        yield connection
    except psycopg.Error as error:
        raise ConfigurationError(f"{options.address}: {_text(error)}") from error
    finally:
        connection.pgconn.finish()


def is_lost(error: Exception) -> bool:
    """Return whether the connection is gone, so that the outcome of a statement is unknown."""
    # Errors in class 57P (shutdown, crash) come with the end of the connection.
    state = getattr(error, "sqlstate", None) or "57P"
    lost = (psycopg.OperationalError, psycopg.InterfaceError)
    return isinstance(error, TimeoutError) or (isinstance(error, lost) and state.startswith("57P"))


def translated(options: PostgresOptions, clock: ServerClock, error: Exception) -> Exception:
    """Return the StoreError for an error of an operation; other errors are returned as they are.

    A server that cannot be used is a ConfigurationError as long as none was used: the process does
    not start. Later it is unavailable: an operator may be moving it.
    """
    if isinstance(error, ConfigurationError):
        return StoreUnavailable(str(error)) if clock.was_reached else error
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{options.address}: no response in {options.timeout} seconds")
    if not isinstance(error, psycopg.Error):
        return error
    text = f"{options.address}: {_text(error)}"
    if error.sqlstate in _UNDEFINED:
        text += f"; was the schema {options.schema!r} removed? Run: genmcp store migrate"
    return StoreUnavailable(text)


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
