"""Cursors of lists, sealed: a server's own text is not shown, and only its client brings it back.

2026-07-28, server/utilities, "Pagination": cursors are opaque, and an invalid one is -32602.
"""

import secrets
from collections.abc import Callable

from genmcp.core.seal import NONCE_BYTES, Purpose, Seal
from genmcp.errors import InvalidParams, SealError

__all__ = ["Cursors"]


class Cursors:
    """The cursors of one mux, each good for *ttl* seconds by the clock *now*."""

    def __init__(self, seal: Seal, now: Callable[[], float], *, ttl: float) -> None:
        self._seal = seal
        self._now = now
        self._ttl = ttl

    def seal(self, method: str, principal: str | None, cursor: str) -> str:
        """Return what stands for the server's *cursor*, for this list and this principal.

        Raises:
            ContractError: it is too long.
        """
        return self._seal.seal(
            Purpose.CURSOR,
            cursor.encode("utf-8", "surrogatepass"),
            now=self._now(),
            ttl=self._ttl,
            nonce=secrets.token_bytes(NONCE_BYTES),
            bound=(method, principal),
        )

    def open(self, method: str, principal: str | None, text: str) -> str:
        """Return the server's cursor that *text* stands for.

        Raises:
            InvalidParams: it stands for none, not for this list and principal, or not any more.
        """
        try:
            packed = self._seal.open(
                Purpose.CURSOR, text, now=self._now(), bound=(method, principal)
            )
        except SealError:
            raise InvalidParams("Invalid cursor") from None
        return packed.decode("utf-8", "surrogatepass")
