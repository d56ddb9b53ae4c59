"""POSTs of 2026-07-28 and later: every request stands for itself."""

from collections.abc import Awaitable

from genmcp.core.params import notification_params
from genmcp.core.server_dispatch import modern_request
from genmcp.errors import InvalidRequest
from genmcp.protocol.revisions.chain import LATEST
from genmcp.transports.responder import Responder
from genmcp.transports.visit import Visit
from genmcp.wire.jsonrpc import Message

__all__ = ["post"]


def post(visit: Visit, message: Message) -> Awaitable[None]:
    """Return what answers one message.

    Raises:
        McpError: it is not accepted.
    """
    if message.is_response:
        # 2026-07-28, Streamable HTTP, "Sending Messages", point 4.
        raise InvalidRequest("A client must not send responses")
    if not message.is_request:
        # Notifications have no effect here: a client cancels by closing its connection. An invalid
        # one still gets an error status ("Sending Messages", point 5).
        notification_params(LATEST, message)
        return visit.reply(202)
    return Responder(visit).serve(modern_request(visit.table, message, visit.mux))
