"""The questions that a hub has forwarded and that are not answered yet, counted by client."""

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
    """The forwarded questions of all servers of a hub that wait for answers. Owned by the hub.

    `patience`: how long a question may block those of other clients.
    """

    def __init__(self, limits: HubLimits) -> None:
        self.limits = limits
        self.patience = _Patience(limits.form_patience)
        self._taken: Counter[Share] = Counter()
        self._all = 0
        self._limit = limits.all_questions
        anonymous = max(1, int(limits.anonymous * limits.all_questions))
        self._limits = {
            "principal": (limits.questions, "HubLimits.questions"),
            "session": (limits.questions, "HubLimits.questions"),
            "address": (limits.questions_of_address, "HubLimits.questions_of_address"),
            "anonymous": (anonymous, "HubLimits.anonymous"),
        }

    @contextmanager
    def place(self, client: ClientKey) -> Iterator[None]:
        """Count a question to *client* while the context is entered.

        Raises:
            Overloaded: too many questions wait for this client, or for all clients.
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
    """The time for which a question may block those of other clients, for each client.

    A client that leaves its forms open could block all others repeatedly. Therefore each question
    that is given up halves the client's time; an answer restores it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: OrderedDict[Hashable, int] = OrderedDict()

    def of(self, client: Hashable) -> float:
        """Return the time of *client* in seconds."""
        return self._seconds / 2.0 ** self._left.get(client, 0)

    def left(self, client: Hashable) -> None:
        """Record that a question to *client* was given up because it blocked others."""
        self._left[client] = min(self._left.get(client, 0) + 1, 30)
        self._left.move_to_end(client)
        if len(self._left) > _MOST:
            self._left.popitem(last=False)

    def answered(self, client: Hashable) -> None:
        """Record that *client* has answered."""
        self._left.pop(client, None)
