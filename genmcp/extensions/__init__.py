"""Extensions of the protocol (SEP-2133): your own, and skills (SEP-2640).

Nothing else of the package loads these modules before a server or client has an extension. Each
name is imported at its first use.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genmcp.extensions.extension import Extension as Extension
    from genmcp.extensions.serving import Extended as Extended
    from genmcp.protocol.methods import Method as Method
    from genmcp.protocol.params import NotificationParams as NotificationParams
    from genmcp.protocol.params import PaginatedRequestParams as PaginatedRequestParams
    from genmcp.protocol.params import RequestParams as RequestParams
    from genmcp.protocol.value import PaginatedResult as PaginatedResult
    from genmcp.protocol.value import Result as Result

_LATER = {
    "Extended": "genmcp.extensions.serving",
    "Extension": "genmcp.extensions.extension",
    "Method": "genmcp.protocol.methods",
    "NotificationParams": "genmcp.protocol.params",
    "PaginatedRequestParams": "genmcp.protocol.params",
    "PaginatedResult": "genmcp.protocol.value",
    "RequestParams": "genmcp.protocol.params",
    "Result": "genmcp.protocol.value",
}
__all__ = [*_LATER]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Import the value of *name* at its first access (PEP 562)."""
    place = _LATER.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(place), name)
    return value
