"""How a client behaves, whatever it is a client of."""

from collections.abc import Sequence
from typing import Final

import msgspec

from genmcp.client.http_options import HttpOptions
from genmcp.client.stdio_options import StdioOptions
from genmcp.errors import ConfigurationError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.question.elicitation import check_schemes
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits

__all__ = ["ClientOptions"]

_BOUNDS: Final = ("timeout", "idle_timeout", "open_timeout", "probe_timeout")
_COUNTS: Final = (
    "max_input_rounds",
    "max_pages",
    "max_message_bytes",
    "input_concurrency",
    "max_poll_failures",
    "max_list_bytes",
    "max_list_items",
)


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client identifies itself, its timeouts and its limits. Times are in seconds.

    info: who the client is, by its own account.
    capabilities: what it can do for the server; None says what the hooks of its handler say.
    revision: the revision to speak; None finds out what the server speaks, newest first.
    timeout: how long one request may take in all, with its questions and its task; None: for ever.
    idle_timeout: how long nothing may be heard of it; progress begins it anew. None: for ever.
    open_timeout: how long it may take to connect. probe_timeout: how long a server may leave the
        question which revisions it speaks unanswered, before it is taken for an older one.
    max_input_rounds: how often a request may be answered with questions.
    input_concurrency: how many of them the handler answers at once; from 2 to 16.
    max_poll_failures: how many polls of a task may fail in a row before waiting for it fails.
        Between them are 0.5, 1, 2 and so on up to 30 seconds, or the interval of the server.
    first_poll: seconds before the first poll of a task, if the server does not notify of changes;
        the pauses then double up to the interval of the server. 0: always that interval.
    era_ttl: seconds for which the revision of a server is remembered. After that a new connection
        probes again: a server of an earlier revision may have been upgraded.
    url_schemes: the schemes of URLs that a server may send the user to, besides https and http to
        loopback, which are always allowed. Other URLs are refused before the handler is called.
    max_pages: the maximum number of pages that are read of a list. max_list_bytes, max_list_items:
        the maximum number of bytes, as JSON, and of items of all pages together; a longer list
        fails with ListTooLong.
    schemas: bounds on the schemas of the server: of its tools, and of the forms of its questions.
        Results of a tool whose `outputSchema` exceeds them are not checked; a tool whose
        `x-mcp-header` annotations cannot be read is left out; a form is refused.
    max_message_bytes: the largest message that is read, in bytes.
    max_pending: how many requests may be unanswered at once; 0 is no limit.
    log_level: the least severe log message that is wanted; None wants none (2026-07-28), or what
        the server thinks fit (before).
    cache_size: how many results are kept for as long as their server says; 0 keeps none.
    tasks: whether the server may answer a call with a task, which the client then waits for.
    check_output: whether structured results are checked against the `outputSchema` of their tool.
    http, stdio: what counts for servers that are reached that way.

    Raises:
        ConfigurationError: an option has a value that means nothing.
    """

    info: Implementation = Implementation("genmcp", "0.1.0")
    capabilities: ClientCapabilities | None = None
    revision: str | None = None
    timeout: float | None = 600.0
    idle_timeout: float | None = 60.0
    open_timeout: float = 30.0
    probe_timeout: float = 5.0
    max_input_rounds: int = 10
    input_concurrency: int = 8
    max_poll_failures: int = 8
    first_poll: float = 0.02
    era_ttl: float = 600.0
    url_schemes: Sequence[str] = ("https",)
    max_pages: int = 1000
    max_list_bytes: int = 8 * 1024 * 1024
    max_list_items: int = 10_000
    schemas: SchemaLimits = FOREIGN_LIMITS
    max_message_bytes: int = 64 * 1024 * 1024
    max_pending: int = 0
    log_level: LoggingLevel | None = None
    cache_size: int = 256
    tasks: bool = True
    check_output: bool = True
    http: HttpOptions = HttpOptions()
    stdio: StdioOptions = StdioOptions()

    def __post_init__(self) -> None:
        """Check every option."""
        for name in (*_BOUNDS, *_COUNTS):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"ClientOptions.{name} must be positive, not {value!r}")
        for name in ("max_pending", "cache_size", "first_poll", "era_ttl"):
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
                f"ClientOptions.revision: {self.revision!r} is none of {', '.join(REVISIONS)}"
            )
