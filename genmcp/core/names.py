"""The bound on URIs and names that clients send.

They are matched with templates, resolved as paths, stored with subscriptions and repeated in
errors, so that a long one costs far more than its transfer.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from genmcp.errors import MalformedParams
from genmcp.protocol.completion import PromptReference

__all__ = ["check_length", "check_names"]


def check_length(name: str, most: int) -> None:
    """Check that a URI or *name* has at most *most* bytes in UTF-8.

    Raises:
        MalformedParams: it has more.
    """
    if len(name.encode()) > most:
        raise MalformedParams(
            f"Invalid params: a URI or name has more than {most} bytes (limit: uri)"
        )


def check_names(method: str, params: Any, most: int) -> None:
    """Check the URIs and names in the *params* of methods that are not routed by a name.

    Does nothing for other methods.

    Raises:
        MalformedParams: one has more than *most* bytes.
    """
    find = _NAMES.get(method)
    if find is not None:
        for name in find(params):
            check_length(name, most)


def _of_completion(params: Any) -> tuple[str, ...]:
    ref = params.ref
    name: str = ref.name if isinstance(ref, PromptReference) else ref.uri
    return (name, params.argument.name)


_NAMES: Final[Mapping[str, Callable[[Any], tuple[str, ...]]]] = {
    "resources/subscribe": lambda params: (params.uri,),
    "resources/unsubscribe": lambda params: (params.uri,),
    "completion/complete": _of_completion,
}
