"""What the declarations of commands share: groups, examples in the help, and options in structs.

Commands are plain click commands. The docstring of a function is its help; the form and the
examples of its arguments follow as the epilog.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from itertools import islice
from typing import Any, Final

import click

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

_DASHED_ID: Final = re.compile(
    r"-[\w-]{19,}", re.ASCII
)  # no option of a command with ids is as long
# Commands that other frameworks have, and what does the same here.
_ELSEWHERE: Final = {
    "run": "serve",
    "dev": "serve --reload --console",
    "start": "serve",
    "init": "new",
    "version": "--version",
}

# Names are compared in quadratic time.
_MAX_NAME: Final = 100
_MAX_NAMES: Final = 1_000

SECONDS: Final = click.FloatRange(0, 86_400)
COUNT: Final = click.IntRange(1)
PORT: Final = click.IntRange(0, 65535)


class Group(click.Group):
    """A group of commands, which are listed in their order.

    Attributes:
        sections: commands that are imported when they run, by the headings under which the help
            lists them. A command is the attribute of its own name of a module of `genmcp.cli`;
            the values are the name of the module and the text of the help.
    """

    sections: Mapping[str, Mapping[str, tuple[str, str]]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; without any, the help is shown."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return [*self.commands, *(name for each in self.sections.values() for name in each)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if it is in one of the sections."""
        for commands in self.sections.values():
            if cmd_name in commands:
                module = import_module(f"genmcp.cli.{commands[cmd_name][0]}")
                found: click.Command = getattr(module, cmd_name)
                return found
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with; report an unknown one with a similar one."""
        names = self.list_commands(ctx)
        if args[0] not in names:
            other = _ELSEWHERE.get(args[0]) if self.sections else None
            hint = f"; did you mean {other!r}?" if other else suggestion(args[0], names)
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by their sections."""
        if not self.sections:
            super().format_commands(ctx, formatter)
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about the unknown *name*: the most similar of *names*, or ""."""
    short = [each for each in islice(names, _MAX_NAMES) if len(each) <= _MAX_NAME]
    near = get_close_matches(name, short, 1) if len(name) <= _MAX_NAME else []
    return f"; did you mean {near[0]!r}?" if near else ""


class TaskCommand(click.Command):
    """A command whose arguments are ids of tasks, which may begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*. With a space in front, such an id is not taken for options."""
        return super().parse_args(
            ctx, [f" {each}" if _DASHED_ID.fullmatch(each) else each for each in args]
        )


class _TaskId(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value.strip()


TASK_ID: Final = _TaskId()


def example(*lines: str, about: str = "") -> str:
    """Return the epilog of a command: *about* its arguments, and examples of command lines."""
    shown = "".join(f"\n  genmcp {line}" for line in lines)
    return f"{about}\n\n\b\nExamples:{shown}"


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
