"""A store as one client uses it: what is written counts for the accounts of that client."""

from msgspec.structs import replace

from genmcp.stores.accounts import Owner
from genmcp.stores.scoped import ScopedStore
from genmcp.stores.store import Delete, Op, Put, Store

__all__ = ["OwnedStore"]


class OwnedStore(ScopedStore):
    """All of *store*, where each Put and Append is for *owner*.

    A Put that expects no record is new work.
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
