"""Logins, switched on by `--login`: an authorization server beside the application.

Anyone can log in there, under any name: it is for trying out clients on one machine. In production,
`Bearer(issuers=[...])` names the authorization server of the users. Explained by the page on
authorization.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from example_app.login_server import LoginServer
from example_app.tools.delivery import BookDelivery
from genmcp.auth import Bearer

__all__ = ["DELIVERIES", "WORKSHOP", "ScopedBookDelivery", "login_at"]

WORKSHOP = "workshop"  # the scope that every request needs
DELIVERIES = "workshop:deliveries"  # the scope that book_delivery needs in addition


class ScopedBookDelivery(BookDelivery):
    """Books a delivery note of a supplier, completely or not at all."""

    # A client without it gets HTTP 403, asks its user for it, and calls again.
    scopes = (DELIVERIES,)


@contextmanager
def login_at(url: str) -> Iterator[Bearer]:
    """Serve an authorization server on a free port of 127.0.0.1 until the block is left.

    Args:
        url: the URL of the application, on a loopback address.

    Yields:
        The access tokens that the endpoint of the application accepts: those of this server.
    """
    resource = f"{url}/mcp"
    with LoginServer(resource, [WORKSHOP, DELIVERIES]).serve() as issuer_url:
        yield Bearer(
            resource,
            issuers=[issuer_url],
            scopes=[WORKSHOP],
            about={"resource_name": "Bicycle workshop"},
        )
