"""What the commands share: their class, their arguments and options, and the types of values.

A command is written in the module of its subject:

    @command("greet", "write a greeting")
    @argument("name", "who is greeted")
    @option("--times", type=COUNT, metavar="N", default=1, help="how often (1)")
    def greet(name: str, times: int) -> int:

It returns its exit status; None is 0. A `ConfigurationError` is written after the name of the
command, with status 2. `genmcp.cli.command` adds the command to the group.
"""

import re
import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import click

from genmcp.cli.output import sanitize
from genmcp.cli.values import suggestion
from genmcp.errors import ConfigurationError

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

_DASHED_ID: Final = re.compile(r"-[\w-]{19,}", re.ASCII)  # of a task; no option is as long
_OPTIONS: Final = "options"


class SectionedOption(click.Option):
    """An option that `--help` shows in the section *section*."""

    def __init__(self, *args: Any, section: str = _OPTIONS, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class DescribedArgument(click.Argument):
    """A positional argument that `--help` describes by *description*."""

    def __init__(self, *args: Any, description: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.description = description


class CliCommand(click.Command):
    """A command of `genmcp`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; those that are too many are reported with a hint."""
        if any(parameter.type is ID for parameter in self.params):
            # With a space in front, an id that begins with a dash is not taken for options.
            args = [f" {each}" if _DASHED_ID.fullmatch(each) else each for each in args]
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest:
            hint = self.extra_hint(ctx.params)
            raise click.UsageError(f"unrecognized arguments: {' '.join(rest)}{hint}", ctx)
        return rest

    def extra_hint(self, values: dict[str, Any]) -> str:
        """Return a hint for a command line with too many arguments, besides *values*."""
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and report a `ConfigurationError` with status 2."""
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            sys.stderr.write(f"{ctx.command_path}: {sanitize(str(error))}\n")
            raise click.exceptions.Exit(2) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, and the options by their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"arguments": [], _OPTIONS: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, DescribedArgument):
                record = (parameter.human_readable_name, parameter.description)
                sections["arguments"].append(record)
            elif (found := parameter.get_help_record(ctx)) is not None:
                section = getattr(parameter, "section", _OPTIONS)
                sections.setdefault(section, []).append(found)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class Group(click.Group):
    """A command that has commands of its own, which it lists if it is run without one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with."""
        if args[0] not in self.commands:
            hint = suggestion(args[0], self.commands)
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order in which they were added."""
        return [*self.commands]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and the commands."""
        records = [each.get_help_record(ctx) for each in self.get_params(ctx)]
        with formatter.section(_OPTIONS):
            formatter.write_dl([each for each in records if each is not None])
        with formatter.section("commands"):
            formatter.write_dl(
                [(name, each.short_help or "") for name, each in self.commands.items()]
            )


def command(
    name: str, help: str, cls: type[CliCommand] = CliCommand
) -> Callable[[Function], click.Command]:
    """Return a decorator that makes a function the command *name*.

    Args:
        name: the name of the command.
        help: what it does, as in "list the tools of a server".
        cls: the class of the command.
    """
    return click.command(name, cls=cls, **_texts(help))


def group(name: str, help: str) -> Group:
    """Return the group *name* of commands."""
    return Group(name, invoke_without_command=True, callback=show_commands, **_texts(help))


@click.pass_context
def show_commands(context: click.Context) -> None:
    """Write the help of a group that is run without a command."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _texts(help: str) -> dict[str, Any]:
    return {
        "help": f"{help[0].upper()}{help[1:]}.",
        "short_help": help,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }


def argument(name: str, description: str, **settings: Any) -> Decorator:
    """Return a decorator that adds the positional argument *name*.

    Args:
        name: the name of the parameter.
        description: what it is, for `--help`.
        settings: those of `click.Argument`.
    """
    is_optional = "default" in settings or settings.get("required") is False
    metavar = f"[{name.upper()}]" if is_optional else name.upper()
    settings = {"metavar": metavar, **settings}
    return click.argument(name, cls=DescribedArgument, description=description, **settings)


def option(*names: str, section: str = _OPTIONS, **settings: Any) -> Decorator:
    """Return a decorator that adds an option.

    Args:
        names: the name of the option, as in "--port", and of the parameter if it differs.
        section: the section of `--help` that shows the option.
        settings: those of `click.Option`.
    """
    return click.option(*names, cls=SectionedOption, section=section, **settings)


def options_as(struct: Callable[..., Any], *parameters: Decorator) -> Decorator:
    """Return a decorator that adds *parameters*, and passes their values as one *struct*.

    The function gets it as a positional argument. A field without a parameter has its default.
    """
    fields: tuple[str, ...] = struct.__struct_fields__  # type: ignore[attr-defined]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def collected(*structs: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in fields if name in values}
            return function(struct(**own), *structs, **values)

        decorated: Function = collected
        for add in reversed(parameters):
            decorated = add(decorated)
        return decorated

    return decorate


class _Converted(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A type of values that *convert* makes of the text; its ValueError is a usage error."""

    def __init__(self, name: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._convert = convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text. A default is not converted."""
        if not isinstance(value, str):
            return value
        try:
            return self._convert(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def converted(name: str, convert: Callable[[str], Any]) -> _Converted:
    """Return the type of the values that *convert* makes of a text, or raises ValueError for."""
    return _Converted(name, convert)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not 1 or more")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"{text!r} is not a number of seconds")
    return seconds


COUNT: Final = converted("count", _count)
"""A whole number from 1."""

PORT: Final = converted("port", _port)
"""A port, 0 to 65535."""

SECONDS: Final = converted("seconds", _seconds)
"""A number of seconds from 0."""

ID: Final = converted("id", str.strip)
"""The id of a task, which may begin with a dash."""


def usage_error_lines(error: click.UsageError) -> Sequence[str]:
    """Return the lines that report *error*: the usage of its command, and the error."""
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        message = f"no such option: {error.option_name}{near}"
    else:
        message = error.format_message().rstrip(".")
        message = f"{message[:1].lower()}{message[1:]}"
    context = error.ctx
    if context is None:
        return [f"genmcp: error: {sanitize(message)}"]
    return [context.get_usage(), f"{context.command_path}: error: {sanitize(message)}"]
