"""The connections of `ProcrastinateEngine`, which bound the time of each statement."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, Final, LiteralString

from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from psycopg_pool import AsyncConnectionPool

from genmcp.stores.postgres.connection import PostgresConnection

# By default the pool tries to connect for 5 minutes, and each pause is twice as long as the one
# before. Once it has given up, the next request for a connection makes it try again.
_RECONNECT_TIMEOUT: Final = 10.0  # seconds


class PoolConnector(PsycopgConnector):
    """The connections of one event loop. Owned by a `ProcrastinateEngine`.

    procrastinate waits for a response without a limit: forever, if the server is suspended, or
    cannot be reached any more. Here a statement fails after *timeout* seconds, and its connection
    is closed. If the server executes such a statement later, nothing is lost: an id is then
    delivered a second time, or a row that this worker holds without a handler is released.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    async def open_pool(self, url: str, max_connections: int) -> None:
        """Open the pool. The first connection is made in the background."""
        pool: Any = AsyncConnectionPool(
            url,
            connection_class=PostgresConnection,
            kwargs={"connect_timeout": whole_seconds(self._timeout)},
            # Each statement is a transaction: BEGIN and COMMIT would be round trips.
            configure=lambda connection: connection.set_autocommit(True),
            min_size=1,
            max_size=max_connections,
            timeout=self._timeout,
            reconnect_timeout=_RECONNECT_TIMEOUT,
            # A round trip. Without it, a submission would fail for each connection that broke.
            check=AsyncConnectionPool.check_connection,
            open=False,
        )
        await self.open_async(pool)
        await pool.open()

    async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
        """Execute *query*."""
        async with self._limit():
            await super().execute_query_async(query, **arguments)

    async def execute_query_one_async(
        self, query: LiteralString, **arguments: Any
    ) -> dict[str, Any]:
        """Execute *query*, and return its row."""
        async with self._limit():
            row: dict[str, Any] = await super().execute_query_one_async(query, **arguments)
        return row

    async def execute_query_all_async(
        self, query: LiteralString, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Execute *query*, and return its rows."""
        async with self._limit():
            rows: list[dict[str, Any]] = await super().execute_query_all_async(query, **arguments)
        return rows

    @asynccontextmanager
    async def _limit(self) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            raise ConnectorException(f"no response in {self._timeout} seconds") from None


def whole_seconds(seconds: float) -> int:
    """Return *seconds* as libpq accepts them: rounded up to a whole number."""
    return max(1, ceil(seconds))
