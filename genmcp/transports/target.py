"""What may be served."""

from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.server import Server

__all__ = ["mux_of"]


def mux_of(target: Mux | Server) -> Mux:
    """Return the mux that *target* is, or one of it.

    Raises:
        ConfigurationError: it is no server; a hub, or a registry, has many.
    """
    if isinstance(target, Mux):
        return target
    if not isinstance(target, Server) and callable(getattr(target, "server", None)):
        raise ConfigurationError(
            f"{target!r} is not one server: give what its server() returns; "
            "a RegistryEndpoint serves each server of a registry as well"
        )
    return Mux(target)
