"""Values of one purpose that clients hold, sealed so that any process can open them."""

import secrets
from collections.abc import Callable

from genmcp.core.seal import NONCE_BYTES, Part, Purpose, Seal
from genmcp.errors import InvalidParams, SealError

__all__ = ["Cursors", "Seals"]


class Seals:
    """Seals values for *purpose*, each valid for *ttl* seconds by the clock *now*."""

    def __init__(
        self, seal: Seal, purpose: Purpose, now: Callable[[], float], *, ttl: float
    ) -> None:
        """*now*: the clock of all processes that open the same seals."""
        self._seal = seal
        self._purpose = purpose
        self._now = now
        self._ttl = ttl
        self.key_id_of = seal.key_id_of

    def seal(self, data: bytes, *bound: Part) -> str:
        """Return *data*, encrypted and bound to the parts *bound*, as text.

        Raises:
            ContractError: it is too large; the message contains its size.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._seal.seal(
            self._purpose, data, now=self._now(), ttl=self._ttl, nonce=nonce, bound=bound
        )

    def open(self, text: str, *bound: Part) -> bytes:
        """Return the data in *text*, which must be bound to the same parts.

        Raises:
            SealError: it was not sealed for this purpose and these parts, or has expired.
        """
        return self._seal.open(self._purpose, text, now=self._now(), bound=bound)


class Cursors(Seals):
    """The cursors of one mux. Each is bound to one list and one principal.

    2026-07-28, server/utilities, "Pagination": cursors are opaque, and an invalid one is -32602.
    """

    def seal_cursor(self, method: str, principal: str | None, cursor: str) -> str:
        """Return the sealed text of the server's *cursor*.

        Raises:
            ContractError: it is too long.
        """
        return self.seal(cursor.encode("utf-8", "surrogatepass"), method, principal)

    def open_cursor(self, method: str, principal: str | None, text: str) -> str:
        """Return the server's cursor in *text*.

        Raises:
            InvalidParams: it was not sealed for this list and principal, or has expired.
        """
        try:
            return self.open(text, method, principal).decode("utf-8", "surrogatepass")
        except SealError:
            raise InvalidParams("Invalid cursor") from None
