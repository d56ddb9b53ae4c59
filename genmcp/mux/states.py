"""The `requestState` of a question: a call's continuation, in the hands of its client.

2026-07-28, basic/patterns, MRTR, "Server Requirements", points 4 and 5: it is encrypted and
authenticated, has an expiry, and opens only for the same principal and the same request.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from genmcp.core.continuation import Continuation
from genmcp.core.request import Request
from genmcp.core.seal import NONCE_BYTES, Part, Purpose, Seal, digest
from genmcp.errors import Expired, ForeignSeal, InvalidParams, SealError

__all__ = ["States"]

logger = logging.getLogger("genmcp")


class States:
    """The request states of one mux, each good for *ttl* seconds by the clock *now*."""

    def __init__(self, seal: Seal, now: Callable[[], float], *, ttl: float) -> None:
        self._seal = seal
        self._now = now
        self._ttl = ttl

    def seal(self, continuation: Continuation, request: Request, principal: str | None) -> str:
        """Return the text that brings *continuation* back with *request*, sent again.

        Raises:
            ContractError: it is too large; the message says how large.
        """
        return self._seal.seal(
            Purpose.REQUEST_STATE,
            continuation.pack(),
            now=self._now(),
            ttl=self._ttl,
            nonce=secrets.token_bytes(NONCE_BYTES),
            bound=_bound(request, principal),
        )

    def open(self, request: Request, principal: str | None) -> Continuation:
        """Return the continuation in the `requestState` of *request*.

        Raises:
            InvalidParams: it was not given out for this, or its time has run out.
        """
        params: Any = request.params
        try:
            packed = self._seal.open(
                Purpose.REQUEST_STATE,
                params.request_state,
                now=self._now(),
                bound=_bound(request, principal),
            )
            continuation = Continuation.unpack(packed)
            key_id = continuation.key_id or self._seal.key_id_of(params.request_state)
            return msgspec.structs.replace(continuation, key_id=key_id)
        except Expired:
            told = "requestState has expired: send the request again without it"
        except (SealError, msgspec.MsgspecError) as error:
            told = "Invalid requestState: it was not given out for this request"
            hint = ", or by a process with another secret" if isinstance(error, ForeignSeal) else ""
            logger.warning("a requestState was refused: %s%s", error, hint)
        raise InvalidParams(told)


def _bound(request: Request, principal: str | None) -> tuple[Part, ...]:
    """Return what the state of *request* is bound to: all that a retry repeats."""
    params: Any = request.params
    key = params.uri if request.method == "resources/read" else params.name
    arguments = getattr(params, "arguments", None)
    return request.method, key, principal, digest(arguments or {})
