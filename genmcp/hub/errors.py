"""What can go wrong at a hub, besides what can at each of its clients.

HubError
├── AlreadyRegistered    a server of that name is there, or on its way
├── ServerNotFound       none of that name is there (any more)
├── ToolNotFound         no server has that tool; what is looked for has the name `server/tool`
└── ConnectFailed        the server could not be reached, or said nothing sensible; `cause`
"""

from genmcp.errors import GenmcpError

__all__ = ["AlreadyRegistered", "ConnectFailed", "HubError", "ServerNotFound", "ToolNotFound"]


class HubError(GenmcpError):
    """What was asked of a hub cannot be done."""


class AlreadyRegistered(HubError):
    """A server of that name is registered, or being registered."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Server already registered: {name}")
        self.name = name


class ServerNotFound(HubError, LookupError):
    """No server of that name is registered; it may have been evicted."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Server not found: {name}")
        self.name = name


class ToolNotFound(HubError, LookupError):
    """No registered server has a tool of that name, which is `server/tool`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Tool not found: {name}")
        self.name = name


class ConnectFailed(HubError):
    """The server *name* could not be connected to; *cause* is the error of its client."""

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"Failed to initialize {name}: {cause}")
        self.name = name
        self.cause = cause
