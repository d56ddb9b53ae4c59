"""The options of a client: its own, those of HTTP and those of stdio.

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

from genmcp._schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp.errors import ConfigurationError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.question.elicitation import check_schemes
from genmcp.telemetry.client import ClientTelemetry
from genmcp.version import __version__

MASK: Final = "***"
USER_AGENT: Final = f"genmcp/{__version__}"

# RFC 9110, sections 5.1 and 5.5. A line break in a value would begin another header.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# The variables that a program needs to run at all. The others stay here: an environment holds keys
# and tokens, which are none of a server's business.
_INHERITED: Final = (
    (
        "APPDATA",
        "COMSPEC",
        "HOMEDRIVE",
        "HOMEPATH",
        "LOCALAPPDATA",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMFILES",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERNAME",
        "USERPROFILE",
    )
    if sys.platform == "win32"
    else (
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "USER",
    )
)


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client connects to a server over HTTP.

    Args:
        headers: sent with every request, such as `{"authorization": "Bearer ..."}`. Without a
            `User-Agent` among them, `genmcp/VERSION` is sent.
        connect_timeout: seconds to establish a connection. Default: 10.
        max_connections: maximum number of concurrent requests; further ones wait. The stream for
            notifications outside of requests, notifications of the client, and its answers to
            questions of the server are not counted. Default: 100.
        keepalive_timeout: seconds for which an idle connection is kept. Common servers close one
            after 5 seconds. If both ends close at the same moment, it is unknown whether a request
            arrived, so this should be less than the server's. Default: 4.
        max_header_bytes: maximum size of the head of a response, of the trailers behind a chunked
            body, and of all interim responses (1xx). Default: 64 KiB.
        listen: whether to open the stream on which servers of revisions before 2026-07-28 send
            notifications outside of requests. Default: True.
        max_resume_attempts: failed attempts in a row to resume a broken event stream of such a
            revision. After them a request fails. Default: 5.
        listen_retry_interval: seconds between further attempts to open the stream for
            notifications after `max_resume_attempts`. Default: 60.
        close_timeout: seconds to end the session when the client closes. Default: 2.
        tls: the TLS context; None trusts the certificates of the system and, if it is installed,
            of certifi. Default: None.
        client: an `httpx.AsyncClient` that sends the requests instead of the client's own pool,
            with its own proxies, certificates, authentication and HTTP/2. It is not closed, and
            `tls`, `keepalive_timeout` and `max_header_bytes` do not apply to it. Default: None.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    headers: Mapping[str, str] = {}
    connect_timeout: float = 10.0
    max_connections: int = 100
    keepalive_timeout: float = 4.0
    max_header_bytes: int = 64 * 1024
    listen: bool = True
    max_resume_attempts: int = 5
    listen_retry_interval: float = 60.0
    close_timeout: float = 2.0
    tls: ssl.SSLContext | None = None
    client: Any = None

    def __post_init__(self) -> None:
        """Check every option."""
        for name in (
            "connect_timeout",
            "max_connections",
            "keepalive_timeout",
            "max_header_bytes",
            "listen_retry_interval",
            "close_timeout",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"HttpOptions.{name} must be positive, not {getattr(self, name)!r}"
                )
        if self.max_resume_attempts < 0:
            raise ConfigurationError(
                "HttpOptions.max_resume_attempts must not be negative, "
                f"not {self.max_resume_attempts!r}"
            )
        for name, value in self.headers.items():
            # The value may be a secret, so it is left out of the message.
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ConfigurationError(
                    f"HttpOptions.headers: {name!r} has a name or value that HTTP does not allow"
                )
        if self.client is not None:
            import httpx  # here: most clients do without it, and its import takes 0.1 s

            if not isinstance(self.client, httpx.AsyncClient):
                raise ConfigurationError(
                    f"HttpOptions.client must be an httpx.AsyncClient, not {self.client!r}"
                )

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return options_repr("HttpOptions", {**values, "headers": mask_values(self.headers)})


class Command(msgspec.Struct, frozen=True):
    """The command that starts a server over stdio.

    Args:
        command: the program, found in `PATH` or given by its path.
        args: its arguments.
        env: variables added to the few that every server inherits: `PATH`, `HOME`, the locale and
            the like. Nothing else of this process's environment is passed on.
        cwd: the working directory; None for that of this process.

    Raises:
        ConfigurationError: The command is empty, or `args` is a string.
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


class StdioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client runs the process of a server over stdio.

    Args:
        stderr: receives the server's stderr: a function called with each line; `"pass"` for this
            process's stderr; None for the logger `genmcp.server` at level INFO. Default: None.
        exit_timeout: seconds for the process to exit after its stdin was closed. Default: 2.
        term_timeout: seconds for it to exit after SIGTERM; then it is killed. Default: 2.
        kill_timeout: seconds to wait for its end after SIGKILL. Default: 5.
        write_timeout: seconds for which the server may not read before a notification or an answer
            to it fails. A request has its own timeout. Default: 30.
        max_pending_writes: maximum number of notifications and answers that wait for the server to
            read. Default: 1000.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    stderr: Callable[[str], None] | Literal["pass"] | None = None
    exit_timeout: float = 2.0
    term_timeout: float = 2.0
    kill_timeout: float = 5.0
    write_timeout: float = 30.0
    max_pending_writes: int = 1000

    def __post_init__(self) -> None:
        """Check every option."""
        for name in self.__struct_fields__[1:]:
            if not getattr(self, name) >= 0:
                raise ConfigurationError(
                    f"StdioOptions.{name} must not be negative, not {getattr(self, name)!r}"
                )
        if self.stderr not in (None, "pass") and not callable(self.stderr):
            raise ConfigurationError(
                f"StdioOptions.stderr must be a function, 'pass' or None, not {self.stderr!r}"
            )


_POSITIVE: Final = (
    "timeout",
    "idle_timeout",
    "open_timeout",
    "probe_timeout",
    "initialized_timeout",
    "task_check_interval",
    "max_input_rounds",
    "max_pages",
    "max_message_bytes",
    "input_concurrency",
    "max_poll_failures",
    "max_list_bytes",
    "max_list_items",
    "max_unread_changes",
    "max_queued_progress",
)
_NOT_NEGATIVE: Final = (
    "max_pending",
    "cache_size",
    "first_poll",
    "era_ttl",
    "hook_close_timeout",
    "task_cancel_timeout",
    "max_queued_inputs",
    "max_queued_notifications",
    "max_abandoned_calls",
)


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a client: identity, timeouts and limits. Times are in seconds.

    Args:
        info: name and version of the client, as servers see them.
        capabilities: the declared capabilities; None (default): what the handler implements.
        revision: the only revision to negotiate; None (default): the newest common one.
        timeout: total time of one call, including its input requests and its task; None: no limit.
        idle_timeout: time without progress of a request; None: no limit.
        open_timeout: time to connect.
        probe_timeout: time for the response to `server/discover`, after which a stdio server is
            treated as one of an earlier revision.
        initialized_timeout: time for the server to accept `notifications/initialized`, after which
            requests are sent nevertheless.
        max_input_rounds: how often a server may ask for input during one request.
        input_concurrency: number of input requests that the handler answers at once, 2 to 16.
        max_queued_inputs: number of input requests that wait for the handler; more are rejected.
        max_queued_notifications: number of notifications that wait for hooks; more are dropped.
        max_queued_progress: number of progress reports that wait for the callback of a call; more
            displace the oldest.
        hook_close_timeout: time that hooks have to finish when the client closes.
        max_poll_failures: failed polls of a task in a row after which waiting for it fails. The
            pauses between them double from 0.5 to 30 seconds.
        first_poll: pause before the first poll of a task, if the server sends no notifications.
            Pauses double up to the server's interval; 0: always that interval.
        task_check_interval: time without a notification after which a task is polled although its
            server sends notifications.
        task_cancel_timeout: time to cancel the task of a call that was given up.
        era_ttl: time for which the revision of a server is remembered. A new connection after that
            probes again, since the server may have been upgraded.
        url_schemes: schemes of URLs that a server may send the user to, besides https and http to
            loopback. Other URLs are refused before the handler is called.
        max_pages: maximum number of pages of a list.
        max_list_bytes: maximum size of a list in bytes of JSON, all pages together. A longer one
            raises ListTooLong.
        max_list_items: maximum number of items of a list, all pages together.
        max_unread_changes: maximum number of different changes that wait in a change stream.
        schemas: limits of the server's schemas. Results of a tool whose `outputSchema` exceeds them
            are not checked; a tool whose `x-mcp-header` annotations cannot be read is left out; a
            form is refused.
        max_message_bytes: maximum size of a message.
        max_pending: maximum number of pending requests; 0 (default): no limit.
        max_abandoned_calls: number of calls that are remembered after they were given up, until
            the server answers them (`Client.abandoned_calls`).
        log_level: least severe log message to receive; None: none (2026-07-28), or as the server
            decides (before).
        cache_size: number of cached results; 0: no cache.
        tasks: whether a server may answer a call with a task.
        check_output: whether structured results are checked against the tool's `outputSchema`.
        http: settings for servers over HTTP.
        stdio: settings for servers over stdio.
        telemetry: observes the requests, and sends the trace context on: an `OpenTelemetryClient`
            of `genmcp.telemetry.otel_client`, for example. None (default): nothing is observed.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    info: Implementation = Implementation("genmcp", __version__)
    capabilities: ClientCapabilities | None = None
    revision: str | None = None
    timeout: float | None = 600.0
    idle_timeout: float | None = 60.0
    open_timeout: float = 30.0
    probe_timeout: float = 5.0
    initialized_timeout: float = 5.0
    max_input_rounds: int = 10
    input_concurrency: int = 8
    max_queued_inputs: int = 64
    max_queued_notifications: int = 1024
    max_queued_progress: int = 256
    hook_close_timeout: float = 5.0
    max_poll_failures: int = 8
    first_poll: float = 0.02
    task_check_interval: float = 30.0
    task_cancel_timeout: float = 2.0
    era_ttl: float = 600.0
    url_schemes: Sequence[str] = ("https",)
    max_pages: int = 1000
    max_list_bytes: int = 8 * 1024 * 1024
    max_list_items: int = 10_000
    max_unread_changes: int = 10_000
    schemas: SchemaLimits = FOREIGN_LIMITS
    max_message_bytes: int = 64 * 1024 * 1024
    max_pending: int = 0
    max_abandoned_calls: int = 1000
    log_level: LoggingLevel | None = None
    cache_size: int = 256
    tasks: bool = True
    check_output: bool = True
    http: HttpOptions = HttpOptions()
    stdio: StdioOptions = StdioOptions()
    telemetry: ClientTelemetry | None = None

    def __post_init__(self) -> None:
        """Check every option."""
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"ClientOptions.{name} must be positive, not {value!r}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"ClientOptions.{name} must not be negative")
        if not 2 <= self.input_concurrency <= 16:
            raise ConfigurationError(
                "ClientOptions.input_concurrency must be from 2 to 16, "
                f"not {self.input_concurrency!r}"
            )
        check_schemes("ClientOptions.url_schemes", self.url_schemes)
        if self.revision is not None and self.revision not in REVISIONS:
            raise ConfigurationError(
                f"ClientOptions.revision: {self.revision!r} is not one of {', '.join(REVISIONS)}"
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
