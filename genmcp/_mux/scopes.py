"""The scopes that a request needs, before any hook runs.

2026-07-28, authorization, "Runtime Insufficient Scope Errors": HTTP 403 with all scopes that the
operation needs.

The scopes of a component are checked on transports that authenticate their clients, which is HTTP.
Over a pipe there is one local user, who may do everything that the process may do.
"""

import logging
from collections.abc import Iterable, Sequence

from genmcp.core.access import Access
from genmcp.core.request import Request, RouteFacts
from genmcp.protocol.params import RequestParams
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    PromptReference,
    ResourceTemplateReference,
)
from genmcp.protocol.resources import SubscriptionsListenRequestParams
from genmcp.protocol.revisions.v2025_11_25 import SubscribeRequestParams
from genmcp.server import Route, Server
from genmcp.wire.jsonrpc import printable

logger = logging.getLogger("genmcp")


def scopes_of(server: Server, request: Request, access: Access | None) -> Sequence[str]:
    """Return the scopes of all components that *request* names, as far as they are known.

    A component that is not visible with *access* has none here: an error about its scopes would
    disclose that it exists. The scopes of a provider's component are known once its route is
    resolved.
    """
    routes = (request.route,) if request.route is not None else _named(server, request.params)
    found: dict[str, None] = {}
    for route in routes:
        if isinstance(route, Route) and route.scopes and route.is_visible(access):
            found.update(dict.fromkeys(route.scopes))
    return tuple(found)


def _named(server: Server, params: RequestParams) -> Iterable[RouteFacts | None]:
    """Return the routes of the components that *params* name besides that of the request."""
    match params:
        case CompleteRequestParams(ref=PromptReference(name=name)):
            return (server.find("prompts/get", name),)
        case CompleteRequestParams(ref=ResourceTemplateReference(uri=uri)):
            return (server.find("resources/read", uri),)
        case SubscribeRequestParams(uri=uri):
            return (server.find("resources/read", uri),)
        case SubscriptionsListenRequestParams(notifications=wanted):
            uris = wanted.resource_subscriptions or ()
            return [server.find("resources/read", uri) for uri in uris]
    return ()


def log_insufficient(request: Request, access: Access | None, scopes: Sequence[str]) -> None:
    """Log that *request*, which needs *scopes*, was refused, with those that *access* lacks."""
    # Not a warning: it is a step of the flow, after which the client asks its user for the scopes.
    lacking = scopes if access is None else access.missing(scopes)
    logger.info(
        "%s %s was refused: %s %s",
        request.method,
        printable(request.key),
        "an anonymous client lacks" if access is None else "the access token lacks",
        printable(" ".join(lacking)),  # a hook may have made them of arguments
    )
