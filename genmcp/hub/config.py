"""The configuration of a hub: its servers, and how it reconnects."""

import logging
import os
import random
import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from genmcp._options import Count, Fraction, Pause, check_bounds
from genmcp.client.auth.base import Auth, check_auth
from genmcp.client.options import MASK, mask_url, mask_values, options_repr
from genmcp.core.backoff import backoff
from genmcp.errors import ConfigurationError
from genmcp.protocol.revisions.chain import REVISIONS

logger = logging.getLogger("genmcp.hub")

Sleep = Callable[[float], Awaitable[object]]
"""A function that waits for a number of seconds."""


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

    max_attempts: Count = 3
    base_delay: Pause = 0.5
    cap: Pause = 30.0
    jitter: Fraction = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        check_bounds(self)

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait before *attempt*, counted from 0.

        *chance* is a random number from 0 to below 1, which determines the jitter.
        """
        return backoff(attempt + 1, self.base_delay, self.cap) * (1 - self.jitter * chance)

    async def wait(self, attempt: int, sleep: Sleep) -> None:
        """Wait before *attempt*, counted from 0, with *sleep*."""
        await sleep(self.delay(attempt, random.random()))


STREAM_RETRY: Final = Retry(base_delay=1.0, cap=60.0, jitter=0.5)
"""The waits before a stream of notifications that ended is opened again, without an end."""

STABLE_AFTER: Final = 60.0
"""Seconds for which a connection or stream has to last to count as stable. After a stable one, the
waits begin at the shortest again."""


class ServerConfig(msgspec.Struct, frozen=True):
    """The configuration of one server of a hub. Give exactly one of *command*, *url*, *target*.

    `repr` masks arguments, the values of variables and headers, and the query of the URL, since
    they may be secrets.

    Args:
        name: the name of the server in the hub, with which the names of its tools begin. Printable
            characters; slashes and spaces not at either end. Models take letters, digits, `_` and
            `-`.
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
    auth: Auth | None = None

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["args"] = (MASK,) * len(self.args)
        values["env"], values["headers"] = mask_values(self.env), mask_values(self.headers)
        values["url"] = None if self.url is None else mask_url(self.url)
        values["auth"] = MASK if isinstance(self.auth, str) else self.auth
        return options_repr("ServerConfig", values)

    def __post_init__(self) -> None:
        """Check the name, the revision, and that exactly one kind of server is given."""
        name = self.name
        # Wider than the names of tools (2025-11-25, server/tools, "Tool Names"), and of servers of
        # a registry, which are parts of URLs: files of desktop clients have names with spaces.
        bare = name.strip(" /") if isinstance(name, str) and name.isprintable() else ""
        if not bare or bare != name:
            raise ConfigurationError(
                f"ServerConfig.name begins the names of tools, as in 'my-server/tool': use "
                f"printable characters, without a space or '/' at either end, unlike {name!r}"
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
# As the files of desktop clients have it: `${NAME}` and `${NAME:-default}`, or `${env:NAME}`.
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
# Where an unknown variable is an error: the text would be sent to the server. A program may fill in
# its arguments and variables itself.
_SENT: Final = ("url", "headers", "auth")


class _DesktopServer(msgspec.Struct, rename="camel"):
    """One entry of `mcpServers`, the format of desktop clients. Unknown members are ignored."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None
    auth: Any = None


class _LoginEntry(
    msgspec.Struct, tag_field="type", tag="oauth", rename="camel", forbid_unknown_fields=True
):
    """A login of a person: `OAuth`, with the tokens in the files of this user."""

    name: str = "genmcp"
    client_id: str | None = None
    secret: str | None = None
    scopes: Sequence[str] | None = None
    issuer: str | None = None
    redirect_uri: str | None = None


class _CredentialsEntry(
    msgspec.Struct,
    tag_field="type",
    tag="client_credentials",
    rename="camel",
    forbid_unknown_fields=True,
):
    """The credentials of a service: `ClientCredentials`, with the tokens in memory."""

    client_id: str
    secret: str | None = None
    key: str | None = None
    scopes: Sequence[str] | None = None
    issuer: str | None = None


def _auth_of(entry: Any) -> Auth:
    """Return the authorization that *entry* describes.

        "${TOKEN}"                                  an access token
        {"type": "oauth", "name": "Parts hub"}      a login of a person: `OAuth`
        {"type": "client_credentials",              a service: `ClientCredentials`
         "clientId": "hub", "secret": "${SECRET}", "issuer": "https://login.example.com"}

    The members of an object are the options of the class, in camel case. The tokens of a person are
    stored as `genmcp login` stores them.

    Raises:
        ConfigurationError: *entry* is invalid. The message has no secret.
    """
    if isinstance(entry, str):
        return entry
    try:
        found: _LoginEntry | _CredentialsEntry
        found = msgspec.convert(entry, _LoginEntry | _CredentialsEntry)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"auth: {error}") from None
    from genmcp.client.auth import ClientCredentials, FileTokens, OAuth

    options = msgspec.structs.asdict(found)
    if isinstance(found, _CredentialsEntry):
        return ClientCredentials(**options)
    return OAuth(**options, tokens=FileTokens())


def load_servers(
    source: str | Path | Mapping[str, Any], *, retry: Retry | None = None
) -> list[ServerConfig]:
    """Return the servers in the `mcpServers` of *source*, in the order of *source*.

        {"mcpServers": {"files": {"command": "npx", "args": ["server-filesystem", "/tmp"]},
                        "remote": {"url": "https://example.com/mcp", "auth": "${TOKEN}"}}}

    `${NAME}` in a text is an environment variable. The `auth` of a server with a URL is an access
    token, or an object that describes a login; see docs/how-to/hub.md. A server that is `disabled`
    is left out. An invalid server is left out with a warning in the log, unless all servers are
    invalid.

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


def _filled(value: Any, variable: Callable[[re.Match[str]], str]) -> Any:
    """Return the JSON *value* with each variable in its texts replaced."""
    if isinstance(value, str):
        return _VARIABLE.sub(variable, value)
    if isinstance(value, list):
        return [_filled(each, variable) for each in value]
    if isinstance(value, dict):
        return {key: _filled(each, variable) for key, each in value.items()}
    return value


def _variable(found: re.Match[str], where: str, place: str) -> str:
    """Return the value of an environment variable, its default, or the text that names it.

    Raises:
        ConfigurationError: it is not set, and the text in *place* would be sent to the server.
    """
    value = os.environ.get(found[1], found[2])
    if value is not None:
        return value
    unknown = f"{place}: the environment variable {found[1]} is not set"
    if place in _SENT:
        raise ConfigurationError(unknown)
    logger.warning("%s: %s, and stands there as it is", where, unknown)
    return found[0]


def _server(location: str, name: str, entry: Any, retry: Retry | None) -> ServerConfig:
    where = f"{location}: server {name!r}"
    try:
        if isinstance(entry, dict):
            entry = {
                place: _filled(each, partial(_variable, where=where, place=place))
                for place, each in entry.items()
                if place in _DesktopServer.__struct_fields__
            }
        read = msgspec.convert(entry, _DesktopServer)
        if (read.command is None) is (read.url is None):
            raise ConfigurationError("give either a command or a url")
        values = msgspec.structs.asdict(read)
        if read.auth is not None:
            values["auth"] = _auth_of(read.auth)
        return ServerConfig(name, retry=retry, **values)
    except (msgspec.MsgspecError, ConfigurationError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
