"""The errors of a hub and of a registry, besides those of `genmcp.client.errors`.

CompositeError
├── UnknownServer             no server has this name
├── UnknownTool               no server has this tool
├── ServerDisabled            the server is registered, and disabled
├── AlreadyRegistered         a server with this name is registered or connecting
└── RegistrySessionNotFound   the session has no registry

ConnectError (of the client)
└── ReconnectError            the connection to a hub's server broke and could not be restored
"""

from genmcp.client.errors import ConnectError
from genmcp.errors import GenmcpError


class CompositeError(GenmcpError):
    """The base of the errors that a hub and a registry share.

    Cure: match its subclasses.
    """


class UnknownServer(CompositeError, LookupError):
    """No server *name* is registered. *reason* is given for a server that the hub evicted.

    Cure: add the server; `hub.servers()` has the names. *reason* says why an evicted one is gone.
    """

    def __init__(self, name: str, reason: str | None = None) -> None:
        super().__init__(f"Unknown MCP server: {name}{f' ({reason})' if reason else ''}")
        self.name = name


class UnknownTool(CompositeError, LookupError):
    """No server has a tool *name*. *reason* is given if the server of the tool is unknown.

    Cure: use a qualified name, `server/tool`, as listed.
    """

    def __init__(self, name: str, reason: str | None = None) -> None:
        super().__init__(f"Unknown tool: {name}{f' ({reason})' if reason else ''}")
        self.name = name


class ServerDisabled(CompositeError):
    """The server *name* is registered, and disabled by `toggle`.

    Cure: enable it by `toggle`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"MCP server disabled: {name}")
        self.name = name


class AlreadyRegistered(CompositeError):
    """A server *name* is registered, or connecting.

    Cure: choose another name, or remove the other server first.

    Args:
        name: the name of the server that was not registered.
        other: the name of the registered server, if it differs from *name*. Two servers may not be
            named `a` and `a/b`, because their tools could have the same qualified name.
    """

    def __init__(self, name: str, other: str | None = None) -> None:
        same = other is None or other == name
        why = "" if same else f", whose tools could have the same names as those of {name}"
        super().__init__(f"Server already registered: {other or name}{why}")
        self.name = name


class RegistrySessionNotFound(CompositeError):
    """No registry is registered for *session*.

    Cure: add a registry for the session first.
    """

    def __init__(self, session: object) -> None:
        super().__init__(f"No registry for session {session!r}")
        self.session = session


class ReconnectError(ConnectError):
    """The connection to a hub's server broke, and was not restored. The hub evicts the server.

    Cure: give the server a `Retry` with more attempts, and look at its log; add it again once it
    runs.

    Args:
        server_name: the name of the server in the hub.
        attempts: how many attempts to reconnect failed; 0 for a server without a `Retry`.
        cause: the error of the last attempt, or the error that broke the connection.
    """

    def __init__(self, server_name: str, attempts: int, cause: BaseException) -> None:
        if attempts:
            failed = "an attempt" if attempts == 1 else f"{attempts} attempts"
            reason = f"its connection broke, and {failed} to reconnect failed: {cause}"
        else:
            reason = f"its connection broke, and it has no retry: {cause}"
        super().__init__(server_name, reason)
