"""The store accounts that a client's records count towards."""

from functools import lru_cache

from genmcp.core.client_key import ClientKey
from genmcp.core.task import Task
from genmcp.mux.limits import Limits
from genmcp.stores.accounts import Account, Owner

__all__ = ["Owners"]

_REMEMBERED = 1024  # clients whose accounts are cached


class Owners:
    """The accounts of clients, with the bounds that *limits* set."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of = lru_cache(_REMEMBERED)(self._made)

    def of(self, client: ClientKey) -> Owner:
        """Return the accounts of *client*, empty for a local one."""
        return self._of(client.principal, client.address)

    def of_task(self, task: Task) -> Owner:
        """Return the accounts of the client that created *task*."""
        return self._of(task.owner, task.address)

    def _made(self, principal: str | None, address: str | None) -> Owner:
        limits = self._limits
        if principal is not None:
            name, share = f"principal {_line(principal)}", limits.stored_of_principal
            return (Account(name, share, setting="Limits.stored_of_principal"),)
        if address is None:
            return ()
        name, share = f"address {_line(address)}", limits.stored_of_address
        return (
            Account("anonymous", limits.anonymous, setting="Limits.anonymous"),
            Account(name, share, setting="Limits.stored_of_address"),
        )


def _line(name: str) -> str:
    """Return *name* on one line, unique for each name: stores write one account per line."""
    return name if name.isprintable() else ascii(name)
