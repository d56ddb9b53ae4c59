"""Output by rich (extra `cli`), for a terminal. No other module imports it.

The texts are sanitized by the caller. Nothing in them is markup.
"""

import io
import os
import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text


def render_json(text: str) -> str:
    """Return the JSON *text* with colours, and a line end. Lines are not wrapped."""
    return _render(JSONHighlighter()(Text(text)), is_wrapped=False)


def render_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* as columns below *headings*, within the width of the terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, style="cyan" if number == 0 else "", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    lines = _render(table).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def paint(text: str, style: str) -> str:
    """Return *text* in *style*, such as "green"."""
    return _render(Text(text, style), is_wrapped=False).removesuffix("\n")


def _render(content: Table | Text, *, is_wrapped: bool = True) -> str:
    # https://no-color.org: any value other than an empty one. Bold and the like are left out, too.
    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system=None if plain else "auto",
        width=shutil.get_terminal_size().columns,
    )
    with console.capture() as capture:
        console.print(content, soft_wrap=not is_wrapped)
    return capture.get()
