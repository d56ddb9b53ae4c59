"""How a client declares extensions, and reads their results and notifications."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from genmcp.extensions.extension import checked_extensions
from genmcp.protocol.methods import Method
from genmcp.protocol.value import CacheableResult


class DeclaredExtensions:
    """The extensions that a client declares. Owned by the client.

    Attributes:
        settings: the settings of each, by its name.

    Raises:
        ConfigurationError: two of *given* clash, or one is not an extension.
    """

    def __init__(self, given: Sequence[object]) -> None:
        extensions = checked_extensions("Client", given)
        self.settings: Mapping[str, Any] = {each.name: each.settings for each in extensions}
        self._methods = {method.name: method for each in extensions for method in each.methods}

    def result(self, method: str, value: Any) -> Any:
        """Return *value*, the result of *method* as JSON values, as the type that the method names.

        The result of a method of no extension is returned as it is. A result without the members
        of caching is read as one that must not be cached, as those of other methods are.

        Raises:
            msgspec.ValidationError: the result is of another shape.
        """
        known = self._methods.get(method)
        if known is None or known.result is None:
            return value
        if issubclass(known.result, CacheableResult) and isinstance(value, Mapping):
            value = {"ttlMs": 0, "cacheScope": "private", **value}
        return msgspec.convert(value, known.result)

    def notification(self, method: str, params: Any) -> Any:
        """Return the *params* of a notification as the type that *method* names.

        Raises:
            msgspec.ValidationError: they are of another shape.
        """
        known: Method | None = self._methods.get(method)
        return params if known is None else msgspec.convert(params, known.params)
