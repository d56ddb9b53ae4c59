"""The questions that wait for the clients of a hub, counted by client."""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from genmcp.core.client_key import ClientKey, Share
from genmcp.errors import Overloaded
from genmcp.hub.limits import HubLimits

__all__ = ["Asked"]

_MOST: Final = 1000  # clients whose abandoned questions are remembered


class Asked:
    """The questions of all servers of a hub that wait for its clients. Owned by the hub.

    `patience`: how long one may stand in the way of others.
    """

    def __init__(self, limits: HubLimits) -> None:
        self.limits = limits
        self.patience = _Patience(limits.form_patience)
        self._taken: Counter[Share] = Counter()
        self._all = 0
        self._limit = limits.all_questions
        self._limits = {
            "principal": (limits.questions, "HubLimits.questions"),
            "session": (limits.questions, "HubLimits.questions"),
            "address": (limits.questions_of_address, "HubLimits.questions_of_address"),
            "anonymous": (int(limits.anonymous * limits.all_questions), "HubLimits.anonymous"),
        }

    @contextmanager
    def place(self, client: ClientKey) -> Iterator[None]:
        """Hold a place for a question to *client* while this is entered.

        Raises:
            Overloaded: too many questions wait for this client, or for all.
        """
        shares = client.shares
        for share in shares:
            most, setting = self._limits[share[0]]
            if self._taken[share] >= most:
                raise Overloaded(f"Too many questions wait for the client: {most} ({setting})")
        if self._all >= self._limit:
            raise Overloaded(
                f"Too many questions wait for answers: {self._limit} (HubLimits.all_questions)"
            )
        self._all += 1
        self._taken.update(shares)
        try:
            yield
        finally:
            self._all -= 1
            for share in shares:
                self._taken[share] -= 1
                if not self._taken[share]:
                    del self._taken[share]


class _Patience:
    """How long a question of one server may stand in the way of others, for each client.

    A client that leaves its forms open would keep all others from being asked again and again: it
    has half the time after each. An answer of it makes up for them.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: OrderedDict[Hashable, int] = OrderedDict()

    def of(self, client: Hashable) -> float:
        """Return the seconds that *client* has."""
        return self._seconds / 2.0 ** self._left.get(client, 0)

    def left(self, client: Hashable) -> None:
        """Note that a question to *client* was given up because it stood in the way."""
        self._left[client] = min(self._left.get(client, 0) + 1, 30)
        self._left.move_to_end(client)
        if len(self._left) > _MOST:
            self._left.popitem(last=False)

    def answered(self, client: Hashable) -> None:
        """Note that *client* has answered."""
        self._left.pop(client, None)
