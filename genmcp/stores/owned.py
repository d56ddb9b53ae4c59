"""A view of a store for one client, whose writes count towards the accounts of that client."""

from msgspec.structs import replace

from genmcp.stores.accounts import Owner
from genmcp.stores.scoped import ScopedStore
from genmcp.stores.store import Delete, Op, Put, Store

__all__ = ["OwnedStore"]


class OwnedStore(ScopedStore):
    """A view of *store* in which each Put and Append counts towards *owner*.

    Keys and logs have no prefix. A Put that expects no record counts as new work.
    """

    def __init__(self, store: Store, owner: Owner) -> None:
        super().__init__(store, "")
        self._prefix = ""
        self._owner = owner

    def _scoped(self, op: Op) -> Op:
        if isinstance(op, Delete):
            return op
        new = op.new or (isinstance(op, Put) and op.expect == 0)
        return replace(op, owner=self._owner, new=new)
