"""The schema in the database: its tables and functions, and how they are brought up to date."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from genmcp.errors import ConfigurationError
from genmcp.stores.postgres.server import (
    SCHEMA_VERSION,
    DatabaseError,
    PostgresOptions,
    connect,
    text_of,
)

# One script for each version, which updates the version before. The first one creates everything:
# the data of earlier versions, which were never released, is not converted.
_SCRIPTS: Final[Mapping[int, str]] = {2: "schema.sql"}
_FOLDER: Final = files("genmcp.stores.postgres")


async def migrate(options: PostgresOptions, *, dry_run: bool = False) -> str:
    """Create the schema, or bring it up to the version of this release; return the SQL.

    All of it is one transaction, under a lock: if several processes call this, one of them does it.

    Args:
        options: those of the store.
        dry_run: whether to return the SQL without executing it. Default False.

    Returns:
        The statements, "" if the schema is up to date.

    Raises:
        ConfigurationError: the server rejects the connection or a statement, or the schema is newer
            than this release, or too old for it.
    """
    connection = await connect(options, check_schema=False)
    try:
        name = options.schema
        await connection.fetch("SET statement_timeout = 0")
        # Locked before the transaction, which sees only the schemas that existed when it began. The
        # lock is released when the connection is closed.
        lock = f"SELECT pg_advisory_lock(hashtextextended('{name}.migrate', 0))::text"
        await connection.fetch(lock)
        await connection.fetch("BEGIN")
        ((exists,),) = await connection.fetch(f"SELECT to_regclass('{name}.meta') IS NOT NULL")
        version = 0
        if exists:
            ((version,),) = await connection.fetch(f"SELECT max(version) FROM {name}.meta")
        if version >= SCHEMA_VERSION:
            return ""
        if version and version < min(_SCRIPTS):
            raise ConfigurationError(
                f"{options.address}: the schema {name!r} has version {version}, of an earlier "
                f"release, and this one cannot read its data: let its tasks end, remove it by "
                f"'DROP SCHEMA {name} CASCADE', and then migrate again"
            )
        sql = _sql(options, version)
        if not dry_run:
            await connection.run_script(sql)
            await connection.fetch("COMMIT")
        return sql
    except DatabaseError as error:
        raise ConfigurationError(f"{options.address}: {text_of(error)}") from error
    finally:
        connection.pgconn.finish()


def _sql(options: PostgresOptions, version: int) -> str:
    scripts = [
        (_FOLDER / name).read_text(encoding="utf-8")
        for number, name in _SCRIPTS.items()
        if number > version
    ]
    return "\n".join(
        (
            f"CREATE SCHEMA IF NOT EXISTS {options.schema};",
            *(options.in_schema(script) for script in scripts),
            f"DELETE FROM {options.schema}.meta;",
            f"INSERT INTO {options.schema}.meta VALUES ({SCHEMA_VERSION});",
        )
    )
