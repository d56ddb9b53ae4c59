"""The options of a client.

Secrets are masked in every `repr` and in the names of servers: errors and logs reach more readers
than a configuration does, such as a model, a ticket or a log service.
"""

import os
import re
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from genmcp._options import Bound, Seconds, check_bounds
from genmcp.errors import ConfigurationError
from genmcp.protocol.capabilities import Implementation
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.version import __version__

MASK: Final = "***"
USER_AGENT: Final = f"genmcp/{__version__}"

# RFC 9110, sections 5.1 and 5.5. A line break in a value would begin another header.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# The variables that a program needs to run at all. The others stay here: an environment holds keys
# and tokens, which are none of a server's business.
_WINDOWS: Final = (
    "APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE "
    "PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE"
)
_POSIX: Final = "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SHELL TERM TMPDIR USER"
_INHERITED: Final = (_WINDOWS if sys.platform == "win32" else _POSIX).split()


class Command(msgspec.Struct, frozen=True):
    """The command that starts a server over stdio.

    Args:
        command: the program, found in `PATH` or given by its path.
        args: its arguments.
        env: variables added to the few that every server inherits: `PATH`, `HOME`, the locale and
            the like. Nothing else of this process's environment is passed on.
        cwd: the working directory; None for that of this process.

    Raises:
        ConfigurationError: the command is empty, or `args` is a string.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.command:
            raise ConfigurationError("Command.command must not be empty")
        if isinstance(self.args, str):
            raise ConfigurationError("Command.args must be a list of strings, not a string")

    def __str__(self) -> str:
        return mask_command(self.command, self.args)

    def __repr__(self) -> str:
        args = (MASK,) * len(self.args)
        values = {"command": self.command, "args": args, "env": mask_values(self.env)}
        return options_repr("Command", {**values, "cwd": self.cwd})

    def environment(self) -> dict[str, str]:
        """Return the complete environment of the new process."""
        inherited = {
            name: value
            for name in _INHERITED
            # A value that begins with "()" is an exported shell function, which a shell would run.
            if (value := os.environ.get(name)) is not None and not value.startswith("()")
        }
        return {**inherited, **(self.env or {})}


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The less common settings of a client. Times are in seconds.

    Args:
        info: name and version of the client, as servers see them.
        revision: the only revision to negotiate; None (default): the newest common one.
        idle_timeout: time without progress of a request; None: no limit. Default: 60.
        open_timeout: time for each message of the handshake. Default: 30.
        log_level: least severe log message to receive; None: none (2026-07-28), or as the server
            decides (before).
        cache_size: number of cached results, of 16 MiB in all; 0: no cache. Default: 256.
        tasks: whether a server may answer a call with a task. Default: True.
        check_output: whether structured results are checked against the `outputSchema` of the tool,
            if `Client.tools` has listed it. Default: True.
        tls: the TLS context; None (default) trusts the certificates of the system and, if it is
            installed, of certifi.
        http_client: an `httpx.AsyncClient` that sends the requests instead of the client's own
            pool, with its own proxies, certificates, authentication and HTTP/2. It is not closed,
            and `tls` does not apply to it. Requests accept no compressed responses. Default: None.
        stderr: receives the stderr of a server over stdio: a function called with each line;
            `"pass"` for this process's stderr; None (default) for the logger `genmcp.server` at
            level INFO.
        telemetry: a `ClientTelemetry`, which observes the requests and sends the trace context on,
            such as an `OpenTelemetryClient` of `genmcp.telemetry.otel_client`. Default: None.

    Raises:
        ConfigurationError: a setting is out of its range or of the wrong type.
    """

    info: Implementation = Implementation("genmcp", __version__)
    revision: str | None = None
    idle_timeout: Seconds | None = 60.0
    open_timeout: Seconds = 30.0
    log_level: LoggingLevel | None = None
    cache_size: Bound = 256
    tasks: bool = True
    check_output: bool = True
    tls: ssl.SSLContext | None = None
    http_client: Any = None
    stderr: Callable[[str], None] | Literal["pass"] | None = None
    telemetry: Any = None

    def __post_init__(self) -> None:
        """Check every option."""
        check_bounds(self)
        if self.revision is not None and self.revision not in REVISIONS:
            raise ConfigurationError(
                f"ClientOptions.revision: {self.revision!r} is not one of {', '.join(REVISIONS)}"
            )
        if self.stderr not in (None, "pass") and not callable(self.stderr):
            raise ConfigurationError(
                f"ClientOptions.stderr must be a function, 'pass' or None, not {self.stderr!r}"
            )
        if self.http_client is not None:
            import httpx  # here: most clients do without it, and its import takes 0.1 s

            if not isinstance(self.http_client, httpx.AsyncClient):
                raise ConfigurationError(
                    "ClientOptions.http_client must be an httpx.AsyncClient, "
                    f"not {self.http_client!r}"
                )
        if self.telemetry is not None:
            from genmcp.telemetry.client import ClientTelemetry  # here: it loads that of servers

            if not isinstance(self.telemetry, ClientTelemetry):
                raise ConfigurationError(
                    f"ClientOptions.telemetry must be a ClientTelemetry, not {self.telemetry!r}"
                )


def check_seconds(name: str, value: object) -> None:
    """Check that the timeout *name* is a positive number.

    Raises:
        ConfigurationError: it is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigurationError(f"{name} must be a positive number of seconds, not {value!r}")


def check_headers(headers: object) -> None:
    """Check the HTTP headers of the user.

    Raises:
        ConfigurationError: one of them has a name or value that HTTP does not allow.
    """
    if not isinstance(headers, Mapping):
        raise ConfigurationError(
            'headers must be a mapping, such as {"x-tenant": "acme"}, '
            f"not a {type(headers).__name__}"
        )
    for name, value in headers.items():
        # The value may be a secret, so it is left out of the message.
        strings = isinstance(name, str) and isinstance(value, str)
        if not strings or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(
                f"headers: {name!r} has a name or value that HTTP does not allow"
            )


def mask_url(url: str) -> str:
    """Return *url* without its fragment, and with its credentials and query masked."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    _user, at, host = parts.netloc.rpartition("@")
    path = parts.path
    if not parts.netloc and "@" in path:  # not a URL, but a mistyped one may hold a password
        path = f"{MASK}@{path.rpartition('@')[2]}"
    query = MASK if parts.query else ""
    return urlunsplit((parts.scheme, f"{MASK}@{host}" if at else host, path, query, ""))


def mask_command(command: str, args: Iterable[str]) -> str:
    """Return *command* with its arguments masked, which may be tokens or passwords."""
    return f"{command} {MASK}" if [*args] else command


def mask_values(values: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """Return headers or environment variables with every value masked."""
    return None if values is None else dict.fromkeys(values, MASK)


def options_repr(name: str, values: Mapping[str, Any]) -> str:
    """Return the `repr` of an instance of class *name*, without empty values and None."""
    given = (f"{key}={value!r}" for key, value in values.items() if value not in (None, (), {}))
    return f"{name}({', '.join(given)})"
