"""What becomes of a session in one process, and has to be known in the others too."""

import logging

import msgspec

from genmcp.core.client_key import ClientKey
from genmcp.core.session import Session
from genmcp.errors import StoreError
from genmcp.mux.calls import CallRegistry
from genmcp.mux.inbox import EVERYBODY, Inbox
from genmcp.mux.limits import Limits
from genmcp.mux.sessions import Sessions
from genmcp.protocol.meta import RequestId
from genmcp.stores.store import Store

__all__ = ["Peers"]

logger = logging.getLogger("genmcp")


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """A call of a session is not wanted any more; id None: none of its calls is."""

    session: str
    id: RequestId | None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A session that began at *issued* (Unix time), of *principal* or *address*, has ended."""

    session: str
    issued: float
    principal: str | None = None
    address: str | None = None


class Peers:
    """The processes that serve the same *audience* from one store, this one among them.

    What they tell of a call is kept for as long as a stream is; that a session has ended, for as
    long as it would have lived.
    """

    def __init__(
        self, store: Store, audience: str, limits: Limits, sessions: Sessions, calls: CallRegistry
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._now = Inbox(store, f"calls:{audience}", ttl=limits.replay, keep=limits.replay_events)
        # At most `revoked` sessions are remembered at a time. The log keeps twice as many, so that
        # what it drops has expired as a rule. (Not always: a session that lives long can be
        # followed by as many that expire soon.)
        keep = 2 * limits.revoked
        self._for_long = Inbox(store, f"ended:{audience}", ttl=limits.session, keep=keep)
        self._now.take(Cancel, self._cancelled)
        self._for_long.take(Ended, self._ended)

    def open(self) -> None:
        """Begin to hear what the others tell, if there may be others."""
        self._now.open()
        self._for_long.open()

    @property
    def current(self) -> bool:
        """Whether all sessions are known that were ended before the first call of `open`."""
        return self._for_long.current

    async def catch_up(self) -> None:
        """Read which sessions were ended before this process was started: see `current`.

        Raises:
            StoreError: they cannot be read, so that no session can be trusted.
        """
        self.open()
        await self._for_long.catch_up()

    async def cancel(self, session: str, id: RequestId) -> None:
        """Cancel the call *id* of *session*, wherever it runs."""
        await self._tell(self._now, Cancel(session, id))

    async def end(self, session: Session, client: ClientKey) -> None:
        """End *session* of *client* in every process: cancel its calls, revoke its id."""
        ended = Ended(session.key, session.issued, client.principal, client.address)
        await self._tell(self._for_long, ended)

    async def aclose(self) -> None:
        """Hear no more."""
        await self._now.aclose()
        await self._for_long.aclose()

    async def _tell(self, inbox: Inbox, message: Cancel | Ended) -> None:
        try:
            await inbox.send(EVERYBODY, message)
        except StoreError as error:
            logger.warning("the other processes are not told of a session: %s", error)

    def _cancelled(self, message: Cancel) -> None:
        self._calls.cancel(message.session, message.id)

    def _ended(self, message: Ended) -> None:
        client = ClientKey(message.principal, None, message.address)
        self._sessions.end(message.session, message.issued, client)
        self._calls.cancel(message.session)
