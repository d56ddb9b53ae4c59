"""The terminal of the user: progress and log messages on it, and questions of the server.

Standard error is the screen, so that the result on standard output can be piped elsewhere.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.cli.output import duration, one_line, sanitize
from genmcp.cli.values import bounds_of, choices_of, convert_value, split_list, types_of
from genmcp.client.handler import ClientHandler, Denied
from genmcp.daemon import in_daemon_thread
from genmcp.errors import ConfigurationError
from genmcp.protocol.params import LoggingMessageNotificationParams
from genmcp.question.elicitation import host_of
from genmcp.question.question import Accepted, Cancelled, Declined

_BAR_WIDTH: Final = 30
_MARK: Final = "| "
_MIN_ELAPSED: Final = 0.5  # seconds; a time left by less would be a guess
_MAX_LINE: Final = 64 * 1024  # bytes; a terminal delivers one line at a time


class StatusLine:
    """The last line of the screen: a progress bar or a status, replaced by the next one.

    Other output is written above it through `write`. While a prompt is open, the line belongs to
    the user: status is dropped, and output is held back until the answer. Without a terminal,
    status is not shown.
    """

    def __init__(self, screen: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._first: tuple[float, float] | None = None  # a progress, and when it was shown
        self._is_terminal = screen.isatty()
        self._is_shown = False
        self._held: list[str] | None = None  # output during a prompt
        self._last = 0.0  # the last progress
        self._shown = ""  # that, without the time left
        self._since = clock()  # when it was shown
        self._notice: str | None = None

    def show_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Show *progress* as a bar with the time left, or as a number without a *total*."""
        now = self._clock()
        if self._first is None or progress < self._last:  # the progress of another call
            self._first = progress, now
        text, left = f"{progress:g}", ""
        if total:
            share = min(max(progress / total, 0.0), 1.0)
            done = int(share * _BAR_WIDTH)
            text = f"[{'#' * done}{' ' * (_BAR_WIDTH - done)}] {share:4.0%}"
            first, since = self._first  # which need not be 0
            if now - since >= _MIN_ELAPSED and first < progress < total:
                seconds = (total - progress) * (now - since) / (progress - first)
                left = f"{duration(seconds)} left "
        self._last, self._shown, self._since = progress, text, now
        self.show(f"{text} {left}{one_line(message or '')}")

    @property
    def silence(self) -> float:
        """The seconds since the last progress."""
        return self._clock() - self._since

    def show_silence(self, notice: str | None) -> None:
        """Show how long there was no progress, in place of a time left that would mislead.

        *notice* is written permanently when it changes, such as that no worker is there.
        """
        if notice and notice != self._notice:
            self.write(f"genmcp: {notice}\n")
            self._first = None  # a mean over the pause would be too low
        self._notice = notice
        self.show(f"{self._shown} no progress for {duration(self.silence)}".lstrip())

    def show(self, text: str) -> None:
        """Show *text*, cut to the width of the screen."""
        if self._is_terminal and self._held is None:
            width = shutil.get_terminal_size().columns - 1
            self._print(f"\r{sanitize(text)[:width]}\x1b[K")
            self._is_shown = True

    def clear(self) -> None:
        """Remove the status line."""
        if self._is_shown:
            self._print("\r\x1b[K")
            self._is_shown = False

    def write(self, text: str) -> None:
        """Write *text* permanently, sanitized, in place of the status line."""
        if self._held is not None:
            self._held.append(text)
            return
        self.clear()
        self._print(sanitize(text))

    def begin_prompt(self, prompt: str) -> None:
        """Write *prompt*, and hold back other output until `end_prompt`."""
        self.write(prompt)
        self._held = []

    def end_prompt(self, answer: str) -> None:
        """Write the output held back; on a line of its own if *answer* did not end the line."""
        held, self._held = self._held or [], None
        self.write("".join(held) if answer else "".join(["\n", *held]))

    def _print(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


class FormField:
    """One field of an elicitation form: its prompt, and the conversion of its input.

    Args:
        key: the name of the field.
        schema: its schema, from the server.
        required: whether the form requires it.
    """

    def __init__(self, key: str, schema: Mapping[str, Any], *, required: bool) -> None:
        self.key = key
        self.required = required and "default" not in schema
        self.default = schema.get("default")
        self._schema = schema
        self._types = types_of(schema, {})
        self._is_list = "array" in self._types
        self._choices = choices_of(schema.get("items", {}) if self._is_list else schema)
        self._checker: Schema | None = None
        with suppress(ConfigurationError):  # malformed or too large: the server checks the value
            self._checker = Schema(schema, origin=key, limits=FOREIGN_LIMITS)

    @property
    def prompt(self) -> str:
        """The prompt: description, name, allowed values and default."""
        name = one_line(str(self._schema.get("title") or self.key))
        details = [*self._constraints()]
        if not self.required and "default" not in self._schema:
            details.append("optional")
        prompt = f"  {name} ({'; '.join(details)})" if details else f"  {name}"
        if "default" in self._schema:
            prompt += f" [{one_line(_as_input(self.default))}]"
        if description := self._schema.get("description"):
            prompt = f"  {one_line(str(description))}\n{prompt}"
        return f"{prompt}: "

    def convert(self, text: str) -> Any:
        """Return the value of the input *text*.

        Raises:
            ConfigurationError: the schema does not allow the value.
        """
        if not self._is_list:
            value = self._convert_one(self._schema, text)
        elif text.lstrip().startswith("["):
            value = convert_value(self.key, self._schema, text)
        else:
            items = self._schema.get("items", {})
            value = [self._convert_one(items, part) for part in split_list(text)]
        for fault in self._checker.check(value) if self._checker else ():
            raise ConfigurationError(fault.removeprefix("(root): "))
        return value

    def _convert_one(self, schema: Mapping[str, Any], text: str) -> Any:
        if self._choices:
            word = text.strip()
            for value, title in self._choices:
                if word in (str(value), title) or word.lower() == title.lower():
                    return value
            names = ", ".join(_choice_text(*choice) for choice in self._choices)
            raise ConfigurationError(f"{word!r} is not one of {names}")
        # Leading and trailing spaces are significant only in strings.
        is_string = "string" in types_of(schema, {})
        return convert_value(self.key, schema, text if is_string else text.strip())

    def _constraints(self) -> Iterator[str]:
        """Yield the allowed values, in words."""
        schema = self._schema
        if self._choices:
            choices = ", ".join(one_line(_choice_text(*choice)) for choice in self._choices)
            yield f"{choices}; separate several by commas" if self._is_list else choices
        elif "boolean" in self._types:
            yield "y/n"
        elif "string" not in self._types and {"integer", "number"} & {*self._types}:
            yield "a whole number" if "integer" in self._types else "a number"
        if "format" in schema:
            yield f"format: {one_line(str(schema['format']))}"
        yield from map(one_line, bounds_of(schema))


def _choice_text(value: Any, title: str) -> str:
    return title if str(value) == title else f"{value} ({title})"


def _as_input(value: Any) -> str:
    """Return *value* in the form in which a user types it."""
    if isinstance(value, bool):
        return "y" if value else "n"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class LogPrinter(ClientHandler):
    """A handler that prints log messages and answers no questions."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status

    async def handle_log(self, message: LoggingMessageNotificationParams) -> None:
        """Print the log message above the status line."""
        self._status.write(mark_lines(f"{message.level}: {message.data}", first=""))


def has_user() -> bool:
    """Return whether there is a terminal at which the user can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class DeferringHandler(LogPrinter):
    """A handler without a user, for tasks: their questions are answered by another command."""

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Refuse the question, which stays open."""
        raise self._refusal()

    async def handle_url_elicitation(self, message: str, url: str) -> Any:
        """Refuse the question, which stays open."""
        raise self._refusal()

    def _refusal(self) -> Denied:
        return Denied(
            "there is a question, and no terminal to ask it at: a task is answered by "
            "`genmcp tasks answer`"
        )


def mark_lines(text: str, first: str = _MARK) -> str:
    """Return *text* of a server with a mark at the beginning of each line.

    A message may contain line ends: without marks it could imitate prompts of this program.

    Args:
        text: the text.
        first: replaces the mark of the first line.
    """
    return f"{first}{sanitize(text).rstrip()}".replace("\n", f"\n{_MARK}") + "\n"


def read_line() -> str:
    """Return the next line of the user; empty at the end of the input."""
    # Not `sys.stdin`: a thread that waits in it holds a lock that the interpreter needs to exit.
    return os.read(sys.stdin.fileno(), _MAX_LINE).decode(errors="replace")


class TerminalHandler(LogPrinter):
    """A handler that asks the user at the terminal, one question at a time.

    Args:
        status: the status line of the screen.
        read: blocks until the user has typed a line, and returns it; empty at the end of the
            input. Called in a thread.
    """

    def __init__(self, status: StatusLine, read: Callable[[], str] = read_line) -> None:
        super().__init__(status)
        self._read = read
        self._reading: asyncio.Future[str] | None = None
        self._lock = asyncio.Lock()

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Prompt for each field of the form, and again until its value is valid."""
        async with self._lock:
            self._status.write(mark_lines(message))
            content: dict[str, Any] = {}
            fields = schema.get("properties", {})
            if not fields:
                return await self._confirm()
            required = schema.get("required", ())
            self._status.write("(! declines, Ctrl-D cancels)\n")
            for key, field in fields.items():
                answer = await self._prompt_field(FormField(key, field, required=key in required))
                if isinstance(answer, Declined | Cancelled):
                    return answer
                if answer is not None:
                    content[key] = answer
            return Accepted(content)

    async def handle_url_elicitation(self, message: str, url: str) -> Any:
        """Show the URL and its host, and ask for consent to open it.

        2026-07-28, client/elicitation, "Safe URL Handling": clients MUST show the full URL, SHOULD
        highlight the domain, and SHOULD warn of Punycode.
        """
        host = host_of(url)
        if "xn--" in host:
            host = f"{host} (letters of other alphabets, written as ASCII)"
        async with self._lock:
            self._status.write(mark_lines(message))
            self._status.write(f"Open this in a browser: {url}\nIts host: {host or 'none'}\n")
            return await self._confirm()

    async def _confirm(self) -> Any:
        while True:
            match await self._prompt("Continue? [y/n] "):
                case None:
                    return Cancelled()
                case "y" | "yes":
                    return Accepted({})
                case "n" | "no" | "!":
                    return Declined()
            self._status.write("y accepts, n declines, Ctrl-D cancels\n")

    async def _prompt_field(self, field: FormField) -> Any:
        """Prompt until the input is valid, and return the value of *field*.

        None if the user leaves out the field; `Declined` or `Cancelled` if the user ends the form.
        """
        while True:
            text = await self._prompt(field.prompt, lower=False)
            if text is None:
                return Cancelled()
            if text.strip() == "!":
                return Declined()
            if not text and not field.required:
                return field.default
            try:
                if not text:
                    raise ConfigurationError("a value is required")
                return field.convert(text)
            except ConfigurationError as error:
                self._status.write(f"  -> {one_line(str(error))}\n")

    async def _prompt(self, prompt: str, *, lower: bool = True) -> str | None:
        """Return a line of the user, None at the end of the input."""
        self._status.begin_prompt(prompt)
        text = ""
        # The thread that reads for a cancelled prompt cannot be interrupted. Its line is used as
        # the answer to the next prompt.
        if self._reading is None or self._reading.done():
            self._reading = in_daemon_thread(self._read)
        try:
            text = await asyncio.shield(self._reading)
        except (OSError, ValueError):  # the terminal was closed
            pass
        finally:
            self._status.end_prompt(text)
        if not text:
            return None
        text = text.rstrip("\r\n")
        return text.strip().lower() if lower else text
