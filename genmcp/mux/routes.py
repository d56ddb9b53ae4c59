"""Routes that a server does not know before it has waited."""

from msgspec.structs import force_setattr

from genmcp.channel import Channel
from genmcp.core.server_dispatch import check_mirrors

__all__ = ["find_route"]


async def find_route(channel: Channel) -> None:
    """Give the request of *channel* the route by which it is answered, if that is not known yet.

    Its policy counts from now on: it has to be known before the hook runs.

    Raises:
        McpError: there is none, or it takes no such request.
    """
    request = channel.request
    if request.route is None or not request.route.pending:
        return
    route = await request.route.found(channel)
    check_mirrors(request, route)
    force_setattr(request, "mirrors", None)
    force_setattr(request, "route", route)
    if channel.carrier.found is not None:
        channel.carrier.found()
