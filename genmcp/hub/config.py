"""The configuration of a hub: its servers, its bounds, and how it reconnects."""

import asyncio
import logging
import random
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from genmcp._core.backoff import backoff
from genmcp.client.auth.base import Auth, check_auth
from genmcp.client.options import MASK, mask_url, mask_values, options_repr
from genmcp.errors import ConfigurationError
from genmcp.hub.auth_config import read_auth
from genmcp.protocol.revisions.chain import REVISIONS

logger = logging.getLogger("genmcp.hub")


class Retry(msgspec.Struct, frozen=True):
    """How a hub reconnects to a server. Times are in seconds.

    The wait before attempt n, counted from 0, is `base_delay` x 2^n, at most `cap`: 0.5, 1 and 2 s
    for `Retry(3, 0.5)`.

    Args:
        max_attempts: the number of attempts. Default 3.
        base_delay: the wait before the first attempt. Default 0.5.
        cap: the longest wait. Default 30.
        jitter: the largest fraction of each wait, from 0 to 1, that is left off at random, so that
            the clients of a server do not all reconnect at the same time. Default 0.

    Raises:
        ConfigurationError: a value is out of range.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    cap: float = 30.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        if self.max_attempts < 1:
            raise ConfigurationError(f"Retry.max_attempts must be 1 or more: {self.max_attempts!r}")
        if self.base_delay < 0 or self.cap < 0:
            raise ConfigurationError("Retry.base_delay and Retry.cap must not be negative")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry.jitter must be from 0 to 1, not {self.jitter!r}")

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait before *attempt*, counted from 0.

        *chance* is a random number from 0 to below 1, which determines the jitter.
        """
        return backoff(attempt + 1, self.base_delay, self.cap) * (1 - self.jitter * chance)


class Backoff(msgspec.Struct, frozen=True):
    """The waits between attempts to connect. Tests pass other functions, and need not wait.

    Args:
        sleep: waits for a number of seconds. Default `asyncio.sleep`.
        chance: returns a random number below 1, for jitter. Default `random.random`.
    """

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    async def wait(self, retry: Retry, attempt: int) -> None:
        """Sleep for the delay of *retry* before *attempt*, counted from 0."""
        await self.sleep(retry.delay(attempt, self.chance()))


class HubLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a hub. Times are in seconds.

    A question is a request of a server to its client: elicitation, sampling or roots. Forwarded
    questions do not count towards the few that a client answers at once. A question may wait long
    for a person, and would block all other questions of its server.

    Args:
        max_questions_per_client: the number of questions that may wait for the answers of one
            principal, or of one session of an anonymous client. Further questions are rejected.
            Default 16.
        max_questions_per_address: the number of questions that may wait for the answers of all
            anonymous clients of one address. Default 64.
        max_questions: the number of questions that may wait for the answers of all clients
            together. It also limits the number of calls that wait for answers. Default 1000.
        anonymous_share: the fraction of max_questions that may wait for anonymous clients, above 0
            and up to 1. Default 0.8.
        answer_timeout: how long a call waits for its client's answer before it is cancelled.
            Default 1200.
        blocking_timeout: how long an open question may block the questions of other calls. After
            that its call is cancelled. A question blocks others only at a server that does not
            identify the call of a question (stdio, before 2026-07-28). Each question that a client
            leaves open halves this time for that client. The time is zero for a client without an
            open connection. Default 60.
        max_blocking_clients: the number of clients whose halved blocking times are kept.
            Default 1000.
        max_queued_logs: the number of log messages of one call that may be queued for its client.
            Further messages are dropped. Default 1000.
        max_subscriptions: the number of resources that all clients together may subscribe to.
            Default 10,000.
        subscription_linger: how long a subscription at a server is kept after the last client has
            unsubscribed, because many clients reconnect and subscribe again. Default 5.
        subscription_timeout: how long a server may take to accept a subscription. After that the
            subscription is treated as accepted. Default 5.
        promote_after: how long a forwarded tool call may take until it becomes a task of the hub,
            for clients that support tasks. Default 10.
        stable_after: how long a connection or stream has to last to count as stable. After a stable
            one, the waits before reconnecting begin at `base_delay` again. Default 60.
        stream_retry: the waits before a stream of notifications that ended is opened again;
            max_attempts has no effect. Default `Retry(base_delay=1, cap=60, jitter=0.5)`.
        max_evicted: the number of evicted servers whose reason of eviction is kept for error
            messages. Default 100.

    Raises:
        ConfigurationError: a count is below 1, a time is negative, or anonymous_share is out of
            range.
    """

    max_questions_per_client: int = 16
    max_questions_per_address: int = 64
    max_questions: int = 1000
    anonymous_share: float = 0.8
    answer_timeout: float = 1200.0
    blocking_timeout: float = 60.0
    max_blocking_clients: int = 1000
    max_queued_logs: int = 1000
    max_subscriptions: int = 10_000
    subscription_linger: float = 5.0
    subscription_timeout: float = 5.0
    promote_after: float = 10.0
    stable_after: float = 60.0
    stream_retry: Retry = Retry(base_delay=1.0, cap=60.0, jitter=0.5)
    max_evicted: int = 100

    def __post_init__(self) -> None:
        """Check every value; the error names the invalid one."""
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if field.type is int and value < 1:
                raise ConfigurationError(f"HubLimits.{field.name} must be 1 or more")
            if field.type is float and value < 0:
                raise ConfigurationError(f"HubLimits.{field.name} must not be negative")
        if not 0 < self.anonymous_share <= 1:
            raise ConfigurationError(
                f"HubLimits.anonymous_share must be from 0 to 1: {self.anonymous_share!r}"
            )


class ServerConfig(msgspec.Struct, frozen=True):
    """The configuration of one server of a hub. Give exactly one of *command*, *url*, *target*.

    `repr` masks arguments, the values of variables and headers, and the query of the URL, since
    they may be secrets.

    Args:
        name: the name of the server in the hub, not empty. It may contain slashes, but neither
            begin nor end with one.
        command: the program of a server over stdio.
        args: the arguments of the program.
        env: environment variables, added to the few that the process inherits.
        retry: how the hub reconnects when the connection breaks. Default None: the server is
            evicted.
        url: the URL of a server over HTTP.
        headers: HTTP headers of each request to the URL.
        cwd: the working directory of the process.
        target: anything else that a `Client` takes: a `Suite`, an `Endpoint`, a transport.
        revision: the protocol revision to use. Default None: that of the hub's `ClientOptions`.
        asks_in_turn: whether each tool of this server waits for the answer to a question before it
            sends the next question. Then a question that does not identify its call (stdio, before
            2026-07-28) cannot belong to a call that waits for an answer, so that an open form does
            not block the questions of other clients. Do not set this for a server with tools that
            send several questions at once: their questions would reach the wrong client. Default
            False.
        auth: authorizes the requests to the URL, as for a `Client`: `ClientCredentials(...)` or the
            like, an access token, or a function that returns one. Default None.

    Raises:
        ConfigurationError: not exactly one of command, url and target is given, or the name or the
            revision is invalid.
    """

    name: str
    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    retry: Retry | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None
    cwd: str | Path | None = None
    target: Any = None
    revision: str | None = None
    asks_in_turn: bool = False
    auth: Auth | None = None

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["args"] = (MASK,) * len(self.args)
        values["env"], values["headers"] = mask_values(self.env), mask_values(self.headers)
        values["url"] = None if self.url is None else mask_url(self.url)
        values["auth"] = MASK if isinstance(self.auth, str) else self.auth
        values["asks_in_turn"] = self.asks_in_turn or None
        return options_repr("ServerConfig", values)

    def __post_init__(self) -> None:
        """Check the name, the revision, and that exactly one kind of server is given."""
        name = self.name
        if not isinstance(name, str) or not name.strip() or name.strip("/") != name:
            raise ConfigurationError(
                f"ServerConfig.name must be a string that neither begins nor ends with '/', "
                f"not {name!r}"
            )
        if self.auth is not None:
            if self.command is not None:
                raise ConfigurationError(f"ServerConfig {name!r}: auth is for a url, not a command")
            check_auth(self.auth)
        given = [each for each in (self.command, self.url, self.target) if each is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"ServerConfig {self.name!r}: give one of command, url and target"
            )
        if self.revision is not None and self.revision not in REVISIONS:
            known = ", ".join(REVISIONS)
            raise ConfigurationError(
                f"ServerConfig {name!r}: revision {self.revision!r} is none of {known}"
            )


_KEY: Final = "mcpServers"


class _DesktopServer(msgspec.Struct, rename="camel"):
    """One entry of `mcpServers`, the format of desktop clients. Unknown members are ignored."""

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None
    auth: Any = None


def load_servers(
    source: str | Path | Mapping[str, Any], *, retry: Retry | None = None
) -> list[ServerConfig]:
    """Return the servers in the `mcpServers` of *source*, in the order of *source*.

        {"mcpServers": {"files": {"command": "npx", "args": ["server-filesystem", "/tmp"]},
                        "remote": {"url": "https://example.com/mcp", "auth": "${TOKEN}"}}}

    The `auth` of a server with a URL is an access token, or an object that describes a login; see
    docs/client-auth.md. A server that is `disabled` is left out. An invalid server is left out with
    a warning in the log, unless all servers are invalid.

    Args:
        source: a mapping, or the path of a JSON file.
        retry: the `retry` of each server. Default None.

    Raises:
        ConfigurationError: *source* does not have this form, or all servers in it are invalid.
        OSError: the file cannot be read.
    """
    location, entries = _entries(source)
    servers: list[ServerConfig] = []
    errors: list[ConfigurationError] = []
    for name, entry in entries.items():
        if not _is_disabled(entry):
            try:
                servers.append(_server(location, name, entry, retry))
            except ConfigurationError as error:
                errors.append(error)
    if errors and not servers:
        raise errors[0]
    for each in errors:
        logger.warning("%s; it is left out", each)
    return servers


def server_of(
    source: str | Path | Mapping[str, Any],
    name: str | None = None,
    *,
    retry: Retry | None = None,
) -> ServerConfig:
    """Return the server *name* in the `mcpServers` of *source*. Other servers may be invalid.

    Args:
        source: a mapping, or the path of a JSON file; see `load_servers`.
        name: the name of the server. Default None: the only enabled server.
        retry: the `retry` of the server. Default None.

    Raises:
        ConfigurationError: the server is missing, disabled or invalid; or *name* is None and not
            exactly one server is enabled.
        OSError: the file cannot be read.
    """
    location, entries = _entries(source)
    usable = [each for each, entry in entries.items() if not _is_disabled(entry)]
    names = ", ".join(usable) or "no enabled server"
    if name is None:
        if len(usable) != 1:
            raise ConfigurationError(f"{location}: the name of a server is needed; it has {names}")
        (name,) = usable
    elif name not in usable:
        why = "is disabled" if name in entries else "does not exist"
        raise ConfigurationError(f"{location}: server {name!r} {why}; it has {names}")
    return _server(location, name, entries[name], retry)


def _entries(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of *source* for error messages, and its undecoded entries by server name."""
    location = _KEY if isinstance(source, Mapping) else str(source)
    try:
        if isinstance(source, Mapping):
            text = msgspec.json.encode(source)
        else:
            # Some editors write a byte order mark at the beginning of the file.
            text = Path(source).read_bytes().removeprefix(BOM_UTF8)
        entries = msgspec.convert(
            msgspec.json.decode(text, type=dict[str, Any])[_KEY], dict[str, Any]
        )
    except KeyError:
        raise ConfigurationError(f"{location}: {_KEY!r} is missing") from None
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"{location}: {error}") from error
    return location, entries


def _is_disabled(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("disabled") is True


def _server(location: str, name: str, entry: Any, retry: Retry | None) -> ServerConfig:
    try:
        read = msgspec.convert(entry, _DesktopServer)
        if (read.command is None) is (read.url is None):
            raise ConfigurationError("give either a command or a url")
        return ServerConfig(
            name,
            command=read.command,
            args=tuple(read.args),
            env=read.env,
            retry=retry,
            url=read.url,
            headers=read.headers,
            cwd=read.cwd,
            auth=None if read.auth is None else read_auth(read.auth),
        )
    except (msgspec.MsgspecError, ConfigurationError) as error:
        raise ConfigurationError(f"{location}: server {name!r}: {error}") from error
