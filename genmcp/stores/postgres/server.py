"""The server of a PostgresStore: its options, a connection to it, and its errors.

This is the only module that imports psycopg.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores.clocks import ServerClock, steady
from genmcp.stores.outages import Outages

try:
    import psycopg
    from psycopg import waiting
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise missing_extra("PostgresStore", "postgres", error) from error

DatabaseError: Final = psycopg.Error

SCHEMA_VERSION: Final = 2
"""The version of schema.sql."""

_OLDEST: Final = 140000

Row: TypeAlias = tuple[Any, ...]

_WAIT_INTERVAL: Final = 60.0  # seconds; psycopg would otherwise wake the process every 0.1 s
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
        to_regclass(%(meta)s) IS NOT NULL, set_config('statement_timeout', %(timeout)s, false),
        extract(epoch FROM clock_timestamp())::float8
"""


class PostgresOptions(Struct, frozen=True):
    """The options of a `PostgresStore`, and the clock of its server."""

    url: str
    schema: str
    timeout: float
    clock: Callable[[], float] | None
    outages: Outages
    server_clock: ServerClock

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

    def failure(self, error: Exception) -> Exception:
        """Return the StoreError for an error of an operation; others are returned as they are.

        A server that cannot be used is a ConfigurationError as long as none was used: the process
        does not start. Later it is unavailable: an operator may be moving it.
        """
        if isinstance(error, ConfigurationError):
            return StoreUnavailable(str(error)) if self.server_clock.was_measured else error
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"{self.address}: no response within {self.timeout} seconds")
        if not isinstance(error, psycopg.Error):
            return error
        text = f"{self.address}: {text_of(error)}"
        if error.sqlstate in _UNDEFINED:
            text += f"; was the schema {self.schema!r} removed? Run: genmcp store migrate"
        return StoreUnavailable(text)


class PostgresConnection(psycopg.AsyncConnection[Row]):
    """A connection that is closed if a statement on it is interrupted.

    psycopg would ask the server to cancel the statement, and wait for seconds, or forever, if the
    server is suspended.
    """

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
        async with asyncio.timeout(options.timeout):
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
        text = f"{options.address}: {text_of(error)}"
        if error.sqlstate == "42501" or any(word in str(error) for word in _REFUSALS):
            hint = "Check the URL, the password and the role's rights"
            raise ConfigurationError(f"{text}. {hint}") from error
        raise StoreUnavailable(text) from error


async def _greet(connection: PostgresConnection, options: PostgresOptions, check: bool) -> None:
    """Check the server and, if *check*, the schema; set up the session, and measure the clock."""
    timeout, schema = str(int(options.timeout * 1000)), options.schema
    sent = steady()
    ((read_only, exists, _, time),) = await connection.fetch(
        _PROPERTIES, {"timeout": timeout, "meta": f"{schema}.meta"}
    )
    received, version = steady(), SCHEMA_VERSION
    if exists:
        ((version,),) = await connection.fetch(f"SELECT max(version) FROM {schema}.meta")
    encoding, migrate = connection.info.parameter_status("server_encoding"), "genmcp store migrate"
    of_schema = f": the schema {schema!r} has version {version}, and this release needs"
    faults = {
        ": PostgreSQL 14 or later is needed": connection.info.server_version < _OLDEST,
        f": the encoding of the database is {encoding}, and must be UTF8": encoding != "UTF8",
        " is read-only, such as a replica: name the primary server in the URL, or several with "
        "target_session_attrs=read-write": read_only,
        f": the schema {schema!r} does not exist; create it by: {migrate}": check and not exists,
        f"{of_schema} {SCHEMA_VERSION}; bring it up to date by: {migrate}": check
        and version < SCHEMA_VERSION,
        f"{of_schema} {SCHEMA_VERSION}: install the newer release": version > SCHEMA_VERSION,
    }
    for fault, found in faults.items():
        if found:
            raise ConfigurationError(f"{options.address}{fault}")
    await connection.run_script(_SESSION)  # last: an old server does not know all settings
    if check:  # the server is used for a store, and not only migrated
        options.server_clock.measure(sent, received, time)


def is_lost(error: Exception) -> bool:
    """Return whether the connection is gone, so that the outcome of a statement is unknown."""
    # Errors in class 57P (shutdown, crash) come with the end of the connection.
    state = getattr(error, "sqlstate", None) or "57P"
    lost = (psycopg.OperationalError, psycopg.InterfaceError)
    return isinstance(error, TimeoutError) or (isinstance(error, lost) and state.startswith("57P"))


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


def text_of(error: psycopg.Error) -> str:
    """Return the message of *error* in one line."""
    return " ".join(str(error).split()) or type(error).__name__
