"""What the parts of a mux that are made last may use of it."""

from typing import Any, Protocol

from genmcp._mux.bus import MessageBus
from genmcp._mux.limits import ConcurrencyLimit, Limits
from genmcp._mux.responses import Responses
from genmcp._mux.session_streams import SessionStreams
from genmcp._mux.sessions import Sessions
from genmcp._mux.telemetry import Observers
from genmcp._mux.threads import ThreadPool
from genmcp.binding import Owner
from genmcp.channel import ChangeNotifier
from genmcp.core.seal import Seal
from genmcp.server import Server
from genmcp.stores.store import Store
from genmcp.wire.encoder import Encoder


class MuxServices(Protocol):
    """The parts of a mux that its calls, tasks and methods use.

    `Mux` has them, and makes them before those. A protocol, because the module of `Mux` imports
    theirs.
    """

    server: Server
    store: Store
    seal: Seal
    limits: Limits
    audience: str
    assigns: dict[str, Any]
    encoder: Encoder
    responses: Responses
    bus: MessageBus
    sessions: Sessions
    session_streams: SessionStreams
    changes: ChangeNotifier
    threads: ThreadPool
    waiting_calls: ConcurrencyLimit
    observers: Observers

    def owner(self, principal: str | None, client: str) -> Owner:
        """Return a client, *client* in the store, as the owner of bound values."""
