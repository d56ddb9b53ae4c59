"""The user at a terminal: what a server asks is asked there, and how far a call is is shown."""

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

from genmcp.cli.bare import line, plain
from genmcp.cli.form import Field
from genmcp.client.handler import ClientHandler
from genmcp.errors import ConfigurationError
from genmcp.protocol.params import LoggingMessageNotificationParams
from genmcp.question.elicitation import host_of
from genmcp.question.question import Accepted, Cancelled, Declined

__all__ = ["Bar", "Logged", "Terminal", "marked", "typed"]

_WIDTH: Final = 30
_MARK: Final = "| "
_LINE: Final = 64 * 1024  # bytes that a line may have; a terminal gives one at a time


class Bar:
    """A line of *screen* that shows how far a call is; none where it is no terminal."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._shown = False
        self._shows = screen.isatty()
        self._held: list[str] | None = None  # while a question is open

    def show(self, progress: float, total: float | None, message: str | None) -> None:
        """Show *progress*, in place of what was shown before."""
        if total:
            share = min(max(progress / total, 0.0), 1.0)
            done = int(share * _WIDTH)
            text = f"[{'#' * done}{' ' * (_WIDTH - done)}] {share:4.0%}"
        else:
            text = f"{progress:g}"
        self.say(f"{text} {line(message or '')}")

    def say(self, text: str) -> None:
        """Show *text*, as much of it as fits in a line."""
        if self._shows and self._held is None:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{plain(text)[:width]}\x1b[K")
            self._shown = True

    def clear(self) -> None:
        """Show nothing any more."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def tell(self, text: str) -> None:
        """Write *text*, of a server, to stay on the screen, in place of the bar."""
        if self._held is not None:
            self._held.append(text)
            return
        self.clear()
        self._write(plain(text))

    def ask(self, prompt: str) -> None:
        """Write *prompt*; until it is `answered`, the line is the user's, and all else waits."""
        self.tell(prompt)
        self._held = []

    def answered(self, said: str) -> None:
        """Write what has waited: the user has *said* a line, or nothing, and left it open."""
        held, self._held = self._held or [], None
        self.tell("".join(held) if said else "".join(["\n", *held]))

    def _write(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


class Logged(ClientHandler[None]):
    """Shows log messages above *bar*; there is nobody to be asked."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    async def handle_log(self, message: LoggingMessageNotificationParams, state: None) -> None:
        """Show it."""
        self._bar.tell(marked(f"{message.level}: {message.data}", first=""))


def marked(text: str, first: str = _MARK) -> str:
    """Return *text* of a server with a mark before each line; *first* replaces the first mark.

    A message may contain line ends: without the marks it could imitate prompts of this program.
    """
    return f"{first}{plain(text).rstrip()}".replace("\n", f"\n{_MARK}") + "\n"


def typed() -> str:
    """Wait for a line that the user types, and return it; empty at the end of the input.

    By `os.read`: a thread that waits in `sys.stdin` holds a lock which Python needs to exit.
    """
    return os.read(sys.stdin.fileno(), _LINE).decode(errors="replace")


class Terminal(Logged):
    """Asks the user at the terminal. *read* gives a line of it, empty at the end of the input."""

    def __init__(self, bar: Bar, read: Callable[[], str] = typed) -> None:
        super().__init__(bar)
        self._read = read
        self._reading: asyncio.Future[str] | None = None
        self._asking = asyncio.Lock()

    async def handle_elicitation_create(
        self, message: str, schema: Mapping[str, Any], state: None
    ) -> Any:
        """Ask for one field after the other, and for each until it is what its schema wants."""
        async with self._asking:
            self._bar.tell(marked(message))
            content: dict[str, Any] = {}
            fields = schema.get("properties", {})
            if not fields:
                return await self._agreed()
            required = schema.get("required", ())
            self._bar.tell("(! declines, Ctrl-D cancels)\n")
            for key, field in fields.items():
                answer = await self._field(Field(key, field, required=key in required))
                if isinstance(answer, Declined | Cancelled):
                    return answer
                if answer is not None:
                    content[key] = answer
            return Accepted(content)

    async def handle_url_elicitation(self, message: str, url: str, state: None) -> Any:
        """Show the URL and its host, and ask whether the user agrees to go there.

        2026-07-28, client/elicitation, "Safe URL Handling": clients MUST show the full URL, SHOULD
        highlight the domain, and SHOULD warn of Punycode.
        """
        host = host_of(url)
        shown = f"{host} (letters of other alphabets, written as ASCII)" if "xn--" in host else host
        async with self._asking:
            self._bar.tell(marked(message))
            self._bar.tell(f"Open this in a browser: {url}\nIts host: {shown or 'none'}\n")
            return await self._agreed()

    async def _agreed(self) -> Any:
        while True:
            match await self._line("Go on? [y/n] "):
                case None:
                    return Cancelled()
                case "y" | "yes":
                    return Accepted({})
                case "n" | "no" | "!":
                    return Declined()
            self._bar.tell("y goes on, n declines, Ctrl-D cancels\n")

    async def _field(self, field: Field) -> Any:
        """Return what the user says to one field, None for nothing, or how the form ends."""
        while True:
            said = await self._line(field.question, lower=False)
            if said is None:
                return Cancelled()
            if said.strip() == "!":
                return Declined()
            if not said and not field.required:
                return field.default
            try:
                if not said:
                    raise ConfigurationError("an answer is needed")
                return field.read(said)
            except ConfigurationError as error:
                self._bar.tell(f"  -> {line(str(error))}\n")

    async def _line(self, prompt: str, *, lower: bool = True) -> str | None:
        """Return a line of the user, None at the end of the input."""
        self._bar.ask(prompt)
        said = ""
        if self._reading is None or self._reading.done():
            self._reading = _in_a_thread(self._read)
        # Who gives up a question leaves the thread reading: the next line is for the next one.
        try:
            said = await asyncio.shield(self._reading)
        finally:
            self._bar.answered(said)
        if not said:
            return None
        said = said.rstrip("\r\n")
        return said.strip().lower() if lower else said


def _in_a_thread(read: Callable[[], str]) -> "asyncio.Future[str]":
    """Return what *read* is going to return.

    The thread is a daemon, and none of the event loop's, which waits for its own at the end.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[str] = loop.create_future()

    def run() -> None:
        try:
            said = read()
        except (OSError, ValueError):  # the terminal is gone
            said = ""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(reading.set_result, said)

    threading.Thread(target=run, name="genmcp-typed", daemon=True).start()
    return reading
