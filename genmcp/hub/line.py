"""A connection of a hub to one of its servers, from its beginning to its very end."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from genmcp.cancellation import run_to_completion
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command, HttpOptions
from genmcp.client.subscriptions import Listening
from genmcp.client.transports.targets import Target, transport_to
from genmcp.hub.catalog import KINDS, Catalog
from genmcp.hub.config import ServerConfig
from genmcp.hub.following import listed, listening, told_of

__all__ = ["Line", "connected"]


class Line(NamedTuple):
    """A connection: its client, what the server has, and what tells of changes if anything does."""

    client: Client
    catalog: Catalog
    changes: Listening | None
    closing: AsyncExitStack

    async def close(self) -> None:
        """End it, and return when it is over, even if this is cancelled meanwhile."""
        await run_to_completion(self.closing.aclose())


async def connected(
    config: ServerConfig,
    handler: ClientHandler[Any] | None,
    options: ClientOptions,
    over: Callable[[], Awaitable[None]],
) -> Line:
    """Connect to the server of *config*, and find out what it has; *over* is called at the end.

    Raises:
        ConnectError: that was not possible; nothing is left of it.
    """
    if config.revision is not None:
        options = replace(options, revision=config.revision)
    stack = AsyncExitStack()
    stack.push_async_callback(over)
    try:
        client = Client(_target(config, options), handler=handler, options=options)
        stack.push_async_callback(client.close)
        await client.open()
        # First this, then the lists: what changes in between is heard of.
        changes = None
        if told_of(client):
            with suppress(ClientError):  # it is tried again
                changes = await stack.enter_async_context(listening(client))
        resources = client.capabilities.resources
        catalog = Catalog(
            reads=resources is not None,
            tells=resources is not None and bool(resources.subscribe),
        )
        catalog, failure = await listed(client, [*KINDS], catalog, options.schemas)
        if failure is not None:
            raise failure
    except BaseException as error:
        await run_to_completion(stack.aclose())
        if not isinstance(error, Exception):
            raise
        # Of whatever kind: the `init` of a handler runs here, too.
        raise ConnectError(config.name, str(error)) from error
    return Line(client, catalog, changes, stack)


def _target(config: ServerConfig, options: ClientOptions) -> Target:
    """Return what a client is to be a client of."""
    if config.command is not None:
        return Command(config.command, config.args, config.env, config.cwd)
    if config.url is not None and config.headers:
        http = HttpOptions(headers=config.headers)
        return transport_to(config.url, max_message=options.max_message_bytes, http=http)
    return config.target if config.url is None else config.url
