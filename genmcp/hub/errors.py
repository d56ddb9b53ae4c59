"""What can go wrong at a hub, besides what can at each of its clients.

HubError
├── AlreadyRegistered   a server of that name is there, or on its way
├── UnknownServer       none of that name is there (any more)
├── UnknownTool         no server has that tool; what is looked for has the name `server/tool`
└── ConnectFailed       the server could not be reached, or said nothing sensible; `cause`
    └── ReconnectFailed ... any more: its connection broke, and there is no other
"""

from genmcp.errors import GenmcpError

__all__ = [
    "AlreadyRegistered",
    "ConnectFailed",
    "HubError",
    "ReconnectFailed",
    "UnknownServer",
    "UnknownTool",
]


class HubError(GenmcpError):
    """What was asked of a hub cannot be done."""


class AlreadyRegistered(HubError):
    """A server of that name is registered, or being registered.

    other: that which is, if its name is not the same: `a` may have a tool of the name of `a/b`'s.
    """

    def __init__(self, name: str, other: str | None = None) -> None:
        same = other is None or other == name
        why = "" if same else f", whose tools could be called as those of {name}"
        super().__init__(f"Server already registered: {other or name}{why}")
        self.name = name


class UnknownServer(HubError, LookupError):
    """No server of that name is registered; *why*: what has become of it."""

    def __init__(self, name: str, why: str | None = None) -> None:
        super().__init__(f"Server not found: {name}{f' ({why})' if why else ''}")
        self.name = name


class UnknownTool(HubError, LookupError):
    """No registered server has a tool of that name, which is `server/tool`; *why*: if known."""

    def __init__(self, name: str, why: str | None = None) -> None:
        super().__init__(f"Tool not found: {name}{f' ({why})' if why else ''}")
        self.name = name


class ConnectFailed(HubError):
    """The server *name* could not be connected to; *cause* is the error of its client."""

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"Failed to initialize {name}: {cause}")
        self.name = name
        self.cause = cause


class ReconnectFailed(ConnectFailed):
    """The connection to *name* broke, and *attempts* at another failed, the last by *cause*.

    why: the same without the name.
    """

    def __init__(self, name: str, cause: BaseException, attempts: int) -> None:
        if attempts:
            those = "an attempt" if attempts == 1 else f"{attempts} attempts"
            self.why = f"its connection broke, and {those} to connect again failed: {cause}"
        else:
            self.why = f"its connection broke, and it has no retry: {cause}"
        HubError.__init__(self, f"{name}: {self.why}")
        self.name = name
        self.cause = cause
