"""What a server lists, read at first and again when it says that it has changed."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerSaid
from genmcp.client.listening import Listening
from genmcp.hub.catalog import KINDS, Catalog

__all__ = ["kinds_of", "listed", "listening", "told_of"]


def told_of(client: Client) -> Collection[str]:
    """Return the kinds of lists of whose changes the server tells."""
    return [
        kind for kind in KINDS if getattr(getattr(client.capabilities, kind), "list_changed", None)
    ]


def listening(client: Client) -> Listening:
    """Return what listens for changes of the lists the server tells of."""
    return client.listen(**dict.fromkeys(told_of(client), True))


def kinds_of(method: str) -> Collection[str]:
    """Return which kinds of lists have changed, by the *method* of the notification."""
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    return [kind] if kind in KINDS else []


async def listed(
    client: Client, kinds: Collection[str], catalog: Catalog
) -> tuple[Catalog, ClientError | None]:
    """Return *catalog* with the lists of *kinds* as they are now, and what was in the way.

    A list that cannot be read stays as it was. That the server refuses one which was empty anyway
    is not in the way: many declare what they do not have.
    """
    lists: dict[str, Sequence[Any]] = {}
    failure: ClientError | None = None
    for kind in kinds:
        if getattr(client.capabilities, kind) is None:
            continue
        for name in KINDS[kind]:
            try:
                lists[name] = await getattr(client, name)()
            except ServerSaid as error:
                if getattr(catalog, name):
                    failure = error
            except ClientError as error:  # nor will it answer anything else now
                return msgspec.structs.replace(catalog, **lists), error
    return msgspec.structs.replace(catalog, **lists), failure
