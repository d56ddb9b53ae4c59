"""What a registry refuses."""

from genmcp.errors import GenmcpError

__all__ = ["RegistryError", "RegistrySessionNotFound", "ServerDisabled", "ServerNotFound"]


class RegistryError(GenmcpError):
    """What every error of a registry derives from."""


class ServerNotFound(RegistryError):
    """No server is registered as *name*."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown MCP server: {name}")
        self.name = name


class ServerDisabled(RegistryError):
    """The server *name* is registered, and switched off."""

    def __init__(self, name: str) -> None:
        super().__init__(f"MCP server disabled: {name}")
        self.name = name


class RegistrySessionNotFound(RegistryError):
    """No registry is registered for *session*."""

    def __init__(self, session: object) -> None:
        super().__init__(f"There is no registry for session {session!r}")
        self.session = session
