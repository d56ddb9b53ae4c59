"""What a server lists, read at first and again when it says that it has changed."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ListTooLong, ServerError
from genmcp.client.subscriptions import Listening
from genmcp.client.tool_catalog import headers_of
from genmcp.errors import ConfigurationError
from genmcp.hub.catalog import KINDS, Catalog
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp.uri_template.template import UriTemplate

__all__ = ["kinds_of", "listed", "listening", "told_of"]

logger = logging.getLogger("genmcp.hub")

# Templates that are parsed in the event loop; a hundred take some 3 ms.
_FEW: Final = 100


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
    client: Client,
    kinds: Collection[str],
    catalog: Catalog,
    limits: SchemaLimits = FOREIGN_LIMITS,
) -> tuple[Catalog, ClientError | None]:
    """Read the lists of *kinds* anew; return the updated *catalog*, and an error if there was one.

    A list that cannot be read stays as it was. If the server refuses one that was empty, that is no
    error: many servers declare lists they do not have. *limits* bound the schemas of tools.
    """
    lists: dict[str, Any] = {}
    failure: ClientError | None = None
    for kind in kinds:
        if getattr(client.capabilities, kind) is None:
            continue
        for name in KINDS[kind]:
            try:
                lists[name] = await getattr(client, name)()
            except ServerError as error:
                if getattr(catalog, name):
                    failure = error
            except ListTooLong as error:  # the other lists, and calls, are not affected
                logger.warning("%s: the list is left out: %s", name, error)
            except ClientError as error:  # other lists would fail, too
                failure = error
                return await _read(catalog, lists, limits), failure
    return await _read(catalog, lists, limits), failure


async def _read(catalog: Catalog, lists: dict[str, Any], limits: SchemaLimits) -> Catalog:
    """Return *catalog* with new *lists*, and the headers and matchers derived from them."""
    if "tools" in lists:
        read = await headers_of(lists["tools"], limits)
        lists["headers"] = {name: each.rules for name, each in read.items() if each.rules}
    if "templates" in lists:
        texts = [each.uri_template for each in lists["templates"]]
        lists["matchers"] = (
            _matchers(texts) if len(texts) <= _FEW else await asyncio.to_thread(_matchers, texts)
        )
    return msgspec.structs.replace(catalog, **lists)


def _matchers(texts: Sequence[str]) -> Sequence[UriTemplate]:
    found = []
    for text in texts:
        with suppress(ConfigurationError):  # an invalid template matches nothing
            found.append(UriTemplate(text))
    return found
