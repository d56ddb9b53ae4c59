"""Which servers a hub is to have: written in Python, or read from a desktop client's file."""

import logging
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from genmcp.client.options import MASK, mask_url, mask_values, options_repr
from genmcp.errors import ConfigurationError
from genmcp.protocol.revisions.chain import REVISIONS

__all__ = ["Retry", "ServerConfig", "load_servers", "server_of"]

logger = logging.getLogger("genmcp.hub")


class Retry(msgspec.Struct, frozen=True):
    """How a server whose connection broke is connected to again; times in seconds.

    The wait *before* attempt n, from 0, is `base_delay` x 2^n, at most `cap`: 0.5, 1 and 2 s for
    `Retry(3, 0.5)`. jitter: the part of each wait, from 0 to 1, that is left to chance, so that
    many clients of one server do not come back at once.

    Raises:
        ConfigurationError: an option has a value that means nothing.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    cap: float = 30.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check every option."""
        if self.max_attempts < 1:
            raise ConfigurationError(f"Retry.max_attempts must be 1 or more: {self.max_attempts!r}")
        if self.base_delay < 0 or self.cap < 0:
            raise ConfigurationError("Retry.base_delay and Retry.cap must not be negative")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry.jitter must be from 0 to 1, not {self.jitter!r}")

    def delay(self, attempt: int, chance: float) -> float:
        """Return how long to wait before *attempt*; *chance* is a random number below 1."""
        whole: float = min(self.cap, self.base_delay * 2.0 ** min(attempt, 64))
        return whole * (1 - self.jitter * chance)


class ServerConfig(msgspec.Struct, frozen=True):
    """One server of a hub.

    name: what the hub calls it; not empty. It may have slashes, but neither first nor last.
    command, args, env, cwd: the process to start, for a server over stdio. *env* is added to what
        such a process gets anyway.
    url, headers: where it is, for a server over HTTP.
    target: anything else a Client takes: a Suite, an Endpoint, a Transport.
    retry: how it is connected to again; None: it is evicted once its connection breaks.
    revision: the revision to speak with the server; None: that of the hub's options.
    asks_in_turn: whether each of its calls waits for the answer to a question before it asks the
        next one. A question that does not identify its call (stdio, before 2026-07-28) then cannot
        belong to a call that waits, so that an open form blocks no other client. Do not set it for
        a server whose tools ask several questions at once: one client would be sent the questions
        of another.

    `repr` masks arguments, the values of variables and headers, and the query of the URL: they may
    be secrets.

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

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["args"] = (MASK,) * len(self.args)
        values["env"], values["headers"] = mask_values(self.env), mask_values(self.headers)
        values["url"] = None if self.url is None else mask_url(self.url)
        values["asks_in_turn"] = self.asks_in_turn or None
        return options_repr("ServerConfig", values)

    def __post_init__(self) -> None:
        """Check that it is one server, whose tools can be told by their names."""
        name = self.name
        if not isinstance(name, str) or not name.strip() or name.strip("/") != name:
            raise ConfigurationError(
                f"ServerConfig.name must be a text that neither begins nor ends with '/', "
                f"not {name!r}"
            )
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


class _Entry(msgspec.Struct, rename="camel"):
    """A server as desktop clients write it; what only they need is left alone."""

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None


def load_servers(
    source: str | Path | Mapping[str, Any], *, retry: Retry | None = None
) -> list[ServerConfig]:
    """Return the servers of the `mcpServers` that *source* has, in their order.

        {"mcpServers": {"files": {"command": "npx", "args": ["server-filesystem", "/tmp"]},
                        "remote": {"url": "https://example.com/mcp"}}}

    source: a mapping, or the path of a JSON file. A server that is `disabled` is left out, and so
    is one that is described wrongly, with a warning in the log. retry: that of each of them.

    Raises:
        ConfigurationError: it is not of this form, or all are described wrongly. OSError: there is
            no file.
    """
    place, entries = _entries(source)
    found: list[ServerConfig] = []
    faults: list[ConfigurationError] = []
    for name, entry in entries.items():
        if not _is_disabled(entry):
            try:
                found.append(_server(place, name, entry, retry))
            except ConfigurationError as error:
                faults.append(error)
    if faults and not found:
        raise faults[0]
    for fault in faults:
        logger.warning("%s; it is left out", fault)
    return found


def server_of(
    source: str | Path | Mapping[str, Any],
    name: str | None = None,
    *,
    retry: Retry | None = None,
) -> ServerConfig:
    """Return the server *name* of the `mcpServers` that *source* has; None: the only one there is.

    It does not matter how the others are described; see `load_servers`.

    Raises:
        ConfigurationError: there is none, it is disabled, or described wrongly. OSError: there is
            no file.
    """
    place, entries = _entries(source)
    usable = [each for each, entry in entries.items() if not _is_disabled(entry)]
    names = ", ".join(usable) or "none that is enabled"
    if name is None:
        if len(usable) != 1:
            raise ConfigurationError(f"{place}: say which server is meant; it has {names}")
        (name,) = usable
    elif name not in usable:
        why = "is disabled" if name in entries else "is not there"
        raise ConfigurationError(f"{place}: server {name!r} {why}; it has {names}")
    return _server(place, name, entries[name], retry)


def _entries(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return where *source* is, and its servers as they are written there."""
    place = _KEY if isinstance(source, Mapping) else str(source)
    try:
        if isinstance(source, Mapping):
            text = msgspec.json.encode(source)
        else:
            text = Path(source).read_bytes().removeprefix(BOM_UTF8)  # as some editors write it
        entries = msgspec.convert(
            msgspec.json.decode(text, type=dict[str, Any])[_KEY], dict[str, Any]
        )
    except KeyError:
        raise ConfigurationError(f"{place}: there is no {_KEY!r}") from None
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"{place}: {error}") from error
    return place, entries


def _is_disabled(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("disabled") is True


def _server(place: str, name: str, entry: Any, retry: Retry | None) -> ServerConfig:
    """Return the server that *entry* describes."""
    try:
        read = msgspec.convert(entry, _Entry)
        if (read.command is None) is (read.url is None):
            raise ConfigurationError("it has to have a command or a url, one of them")
        return ServerConfig(
            name,
            command=read.command,
            args=tuple(read.args),
            env=read.env,
            retry=retry,
            url=read.url,
            headers=read.headers,
            cwd=read.cwd,
        )
    except (msgspec.MsgspecError, ConfigurationError) as error:
        raise ConfigurationError(f"{place}: server {name!r}: {error}") from error
