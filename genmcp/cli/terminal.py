"""The user at a terminal: what a server asks is asked there, and how far a call is is shown."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

from genmcp.cli.values import value_of
from genmcp.client.handler import ClientHandler
from genmcp.errors import ConfigurationError
from genmcp.protocol.notifications import LoggingMessageNotificationParams
from genmcp.question.answers import Accepted, Declined, Dismissed

__all__ = ["Bar", "Logged", "Terminal", "plain", "typed"]

_WIDTH: Final = 30
_LINE: Final = 64 * 1024  # bytes that a line may have; a terminal gives one at a time


class Bar:
    """A line of *screen* that shows how far a call is; none where it is no terminal."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._shown = False
        self._shows = screen.isatty()

    def show(self, progress: float, total: float | None, message: str | None) -> None:
        """Show *progress*, in place of what was shown before."""
        if not self._shows:
            return
        if total:
            share = min(max(progress / total, 0.0), 1.0)
            done = int(share * _WIDTH)
            text = f"[{'#' * done}{' ' * (_WIDTH - done)}] {share:4.0%}"
        else:
            text = f"{progress:g}"
        self._write(f"\r{text} {plain(message or '')}\x1b[K")
        self._shown = True

    def clear(self) -> None:
        """Show nothing any more."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


class Logged(ClientHandler[None]):
    """Shows log messages on *screen*; there is nobody to be asked."""

    def __init__(self, screen: TextIO, bar: Bar) -> None:
        self._screen = screen
        self._bar = bar

    async def handle_log(self, message: LoggingMessageNotificationParams, state: None) -> None:
        """Show it."""
        self._bar.clear()
        self._screen.write(f"{message.level}: {plain(str(message.data))}\n")
        self._screen.flush()


def typed() -> str:
    """Wait for a line that the user types, and return it; empty at the end of the input.

    By `os.read`: a thread that waits in `sys.stdin` holds a lock which Python needs to exit.
    """
    return os.read(sys.stdin.fileno(), _LINE).decode(errors="replace")


class Terminal(Logged):
    """Asks the user at the terminal. *read* gives a line of it, empty at the end of the input."""

    def __init__(self, screen: TextIO, bar: Bar, read: Callable[[], str] = typed) -> None:
        super().__init__(screen, bar)
        self._read = read
        self._reading: asyncio.Future[str] | None = None
        self._asking = asyncio.Lock()

    async def handle_elicitation_create(
        self, message: str, schema: Mapping[str, Any], state: None
    ) -> Any:
        """Ask for one field after the other. An empty line leaves one out, `!` ends it all."""
        async with self._asking:
            self._say(f"{plain(message)}\n")
            content: dict[str, Any] = {}
            fields = schema.get("properties", {})
            if not fields:
                return await self._agreed()
            required = schema.get("required", ())
            for key, field in fields.items():
                answer = await self._field(key, field, required=key in required)
                if answer is _ENDED:
                    return Dismissed()
                if answer is not None:
                    content[key] = answer
            return Accepted(content)

    async def handle_url_elicitation(self, message: str, url: str, state: None) -> Any:
        """Show the URL, and ask whether the user has gone there."""
        async with self._asking:
            self._say(f"{plain(message)}\nOpen this in a browser: {plain(url)}\n")
            return await self._agreed()

    async def _agreed(self) -> Any:
        line = await self._line("Go on? [y/n] ")
        if line is None:
            return Dismissed()
        return Accepted({}) if line.strip().lower() in ("y", "yes") else Declined()

    async def _field(self, key: str, field: Mapping[str, Any], *, required: bool) -> Any:
        """Return what the user says to one field, None for nothing, _ENDED for no more."""
        while True:
            line = await self._line(_prompt(key, field, required=required))
            if line is None or line == "!":
                return _ENDED
            if not line and ("default" in field or not required):
                return field.get("default")
            if not line:
                continue
            try:
                return value_of(
                    key,
                    field,
                    _BOOLEANS.get(line.lower(), line) if field.get("type") == "boolean" else line,
                )
            except ConfigurationError as error:
                self._say(f"{plain(str(error))}\n")

    async def _line(self, prompt: str) -> str | None:
        """Return a line of the user, None at the end of the input."""
        self._say(prompt)
        if self._reading is None or self._reading.done():
            self._reading = _in_a_thread(self._read)
        # Who gives up a question leaves the thread reading: the next line is for the next one.
        line = await asyncio.shield(self._reading)
        return line.rstrip("\r\n") if line else None

    def _say(self, text: str) -> None:
        self._bar.clear()
        self._screen.write(text)
        self._screen.flush()


_ENDED: Final = object()
_BOOLEANS: Final = {"y": "true", "yes": "true", "n": "false", "no": "false"}


def _in_a_thread(read: Callable[[], str]) -> "asyncio.Future[str]":
    """Return what *read* is going to return.

    The thread is a daemon, and none of the event loop's, which waits for its own at the end.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[str] = loop.create_future()

    def run() -> None:
        try:
            line = read()
        except (OSError, ValueError):  # the terminal is gone
            line = ""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(reading.set_result, line)

    threading.Thread(target=run, name="genmcp-typed", daemon=True).start()
    return reading


def _prompt(key: str, field: Mapping[str, Any], *, required: bool) -> str:
    name = str(field.get("title", key))
    if isinstance(choices := field.get("enum"), list):
        name += f" ({', '.join(map(str, choices))})"
    if "default" in field:
        name += f" [{field['default']}]"
    elif not required:
        name += " (optional)"
    return f"  {plain(name)}: "


def plain(text: str) -> str:
    """Return *text* of a server without what a terminal would obey."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t")
