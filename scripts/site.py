"""What mkdocs adds to the site (`hooks` of mkdocs.yml): tables made from the code, and the links.

A page has `<!-- site: NAME -->` where the output of the function NAME is put.
"""

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from genmcp.cli.command import commands as cli
from genmcp.errors import GenmcpError
from tests.support.npm import npm_package
from tests.support.peers import MERMAID

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
_ERRORS: Final = ("genmcp.errors", "genmcp.client.errors", "genmcp.composite.errors")
_EVERY_WORD: Final = r".map(r=>/(^[+-]|[~^]\d+$)/.test(r)?r:`${r}*`)"
_LAST_WORD: Final = r".map((r,n,a)=>/(^[+-]|[~^]\d+$)/.test(r)||n+1<a.length?r:`${r}*`)"
_DIRECTIVE: Final = re.compile(r"^::: (genmcp[\w.]*)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the library that draws diagrams, which the theme would load from elsewhere."""
    _, modules = npm_package(*MERMAID)
    script = modules / "mermaid" / "dist" / "mermaid.min.js"
    files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in the generated parts of a page, and mend its links to files beside docs/."""
    # The reference has every word many times: a search for a task should find its guide first.
    if page.file.src_uri.startswith(("reference/", "architecture")):
        page.meta.setdefault("search", {"boost": 0.1})
    markdown = re.sub(
        r"^<!-- site: (\w+) -->$", lambda m: _PARTS[m[1]](), markdown, flags=re.MULTILINE
    )
    folder = (DOCS / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {match[2]}")
        source = _source_url()
        return f"[{text}]({source}/{target.relative_to(ROOT)})" if source else text

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)", linked, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Make the search take only the last word, which is being typed, for the beginning of one.

    The theme does so with each word, so that the "a" of "cancel a job" finds all words with an a.
    And remove the padding of tables from the texts for language models: half of their size.
    """
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    script = worker.read_text("utf-8")
    if script.count(_EVERY_WORD) != 1:
        raise PluginError("the search of the theme is another one: see on_post_build")
    worker.write_text(script.replace(_EVERY_WORD, _LAST_WORD), "utf-8")
    for text in (Path(config.site_dir, "llms-full.txt"), *Path(config.site_dir).rglob("*.md")):
        rows = re.sub(r"^\|.*\|$", _unpadded, text.read_text("utf-8"), flags=re.MULTILINE)
        text.write_text(rows, "utf-8")


def _unpadded(row: re.Match[str]) -> str:
    return re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", row[0]))


def _source_url() -> str | None:
    """Return the URL of the repository's files, by the URLs of the project; None without one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    urls: dict[str, str] = project.get("urls", {})
    source = urls.get("Source") or urls.get("Repository")
    return f"{source}/blob/main" if source else None


def names() -> str:
    """Return a table of the names on the pages of the reference, with what each is."""
    rows = ["| name | import from | is |", "|---|---|---|"]
    found = {
        (path.rpartition(".")[2], path)
        for page in (DOCS / "reference").glob("*.md")
        for path in _DIRECTIVE.findall(page.read_text("utf-8"))
        if not inspect.ismodule(_value(path))
    }
    for name, path in sorted(found, key=lambda each: (each[0].lower(), each)):
        home = path.rpartition(".")[0]
        rows.append(f"| [`{name}`][{path}] | `{home}` | {_sentence(_value(path))} |")
    return "\n".join(rows)


def errors() -> str:
    """Return a table of the errors: their JSON-RPC code and HTTP status, cause and cure."""
    rows = ["| error | code, HTTP | cause | cure |", "|---|---|---|---|"]
    for error in sorted(_error_classes(), key=lambda each: each.__name__):
        code, status = getattr(error, "code", None), getattr(error, "status", None)
        codes = f"{code}, {status}" if isinstance(code, int) else "-"
        cure = re.search(r"^Cure: (.*?)(?:\n\n|\Z)", inspect.getdoc(error) or "", re.M | re.S)
        if cure is None:
            raise PluginError(f"{error.__name__}: its docstring has no paragraph `Cure: ...`")
        path = f"{error.__module__}.{error.__name__}"
        text = _cell(cure[1][0].upper() + cure[1][1:])
        rows.append(f"| [`{error.__name__}`][{path}] | {codes} | {_sentence(error)} | {text} |")
    return "\n".join(rows)


def commands() -> str:
    """Return the help of each command under a heading of its own."""
    return "\n".join(_help("genmcp", cli, None))


def _help(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": 80}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    depth = len(context.command_path.split())
    title = context.command_path if depth == 1 else context.command_path.partition(" ")[2]
    yield f"{'#' * (depth + 1)} {title}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            if (found := command.get_command(context, each)) is not None:
                yield from _help(each, found, context)


def _error_classes() -> Iterator[type]:
    for name in _ERRORS:
        for value in vars(importlib.import_module(name)).values():
            if inspect.isclass(value) and value.__module__ == name and value is not GenmcpError:
                yield value


def _value(path: str) -> object:
    """Return the module, class or function at *path*."""
    home, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(home), name)
    except (AttributeError, ImportError, ValueError):
        return importlib.import_module(path)


def _sentence(value: object) -> str:
    """Return the first sentence of the docstring of *value*."""
    paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return _cell(re.split(r"(?<=\.) (?=[A-Z*`])", " ".join(paragraph.split()))[0])


def _cell(text: str) -> str:
    """Return *text* for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


_PARTS: Final[dict[str, Callable[[], str]]] = {
    each.__name__: each for each in (commands, errors, names)
}
