"""`genmcp lint`: reports properties of tools that known hosts reject, or models misuse."""

import asyncio
import difflib
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from genmcp._mux.mux import Mux
from genmcp.cli.lint_rules import (
    RULES,
    LintRule,
    ListedTools,
    Violation,
    check_tools,
    tokens_of,
)
from genmcp.cli.output import OutputWriter, one_line, private_output, sanitize
from genmcp.cli.parsing import command, option
from genmcp.cli.remote import RemoteOptions, error_text, remote_options
from genmcp.cli.target import ResolvedTarget, TargetCommand, resolve_target
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerError
from genmcp.errors import ConfigurationError, McpError, MethodNotFound
from genmcp.protocol.tools import ToolDefinition

_OLDER: Final = "2025-11-25"  # the last revision in which an output schema is an object
_MAX_SUBJECT: Final = 40  # characters of a column


@command("lint", "report tools that known hosts reject, or models misuse", TargetCommand)
@remote_options
@option("--ignore", multiple=True, metavar="RULE", help="a rule to leave out; repeatable")
def lint(options: RemoteOptions, ignore: Sequence[str]) -> int:
    """Report the violations of the rules. The exit status is 1 if one of them is an error."""
    check_ignored(ignore)
    with private_output() as output:
        try:
            listed = asyncio.run(read_tools(resolve_target(options)))
        except (ClientError, McpError) as error:
            sys.stderr.write(f"genmcp: {sanitize(error_text(error))}\n")
            return 1
        violations = find_violations(listed, ignore)
        with output if options.output is None else OutputWriter(path=options.output) as chosen:
            if options.json:
                chosen.write_json(as_json(violations))
            else:
                for line in report_lines(listed, violations):
                    chosen.write_line(line)
    return int(any(each.rule.severity == "error" for each in violations))


async def read_tools(resolved: ResolvedTarget) -> ListedTools:
    """Return the tools of a server, as new and as older clients get them.

    Raises:
        ClientError: the server cannot be reached.
    """
    target, options = resolved.target, resolved.options
    try:
        async with resolved.client() as client:
            tools = await _tools_of(client)
            info = client.server_info
            name = info.name if info is not None else ""
            if client.revision <= _OLDER:
                return ListedTools(tools=tools, older=tools, server_name=name)
            supported = (await client.discover()).supported_versions
        older = None
        if _OLDER in supported:
            pinned = replace(options, revision=_OLDER)
            # The rule for output schemas is then not checked.
            with suppress(ClientError):
                async with resolved.client(options=pinned) as client:
                    older = await _tools_of(client)
        return ListedTools(tools=tools, older=older, server_name=name)
    finally:
        if isinstance(target, Mux):
            await target.aclose()


async def _tools_of(client: Client) -> Sequence[ToolDefinition]:
    try:
        return await client.tools()
    except ServerError as error:
        if error.code != MethodNotFound.code:
            raise
        return []


def check_ignored(ids: Collection[str]) -> None:
    """Check that *ids* are those of rules.

    Raises:
        ConfigurationError: one of them is not.
    """
    known = [rule.id for rule in RULES]
    for id in ids:
        if id not in known:
            near = difflib.get_close_matches(id, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the rules are {', '.join(known)}"
            raise ConfigurationError(f"--ignore: there is no rule {id!r}; {hint}")


def find_violations(listed: ListedTools, ignored: Collection[str] = ()) -> list[Violation]:
    """Return the violations of all rules but those that are *ignored*, errors first."""
    order = {rule.id: number for number, rule in enumerate(RULES)}
    found = [each for each in check_tools(listed) if each.rule.id not in ignored]
    return sorted(found, key=lambda each: (each.rule.severity != "error", order[each.rule.id]))


def report_lines(listed: ListedTools, violations: Sequence[Violation]) -> Iterator[str]:
    """Yield the lines that report *violations*, grouped by rule."""
    width = max([len(each.rule.id) for each in violations], default=0)
    width = max([width, *(min(len(each.subject), _MAX_SUBJECT) for each in violations)])

    def line(first: str, column: str, text: str) -> str:
        return f"{first:<6} {one_line(column):<{width}}  {one_line(text)}".rstrip()

    rule: LintRule | None = None
    for each in violations:
        if each.rule is not rule:
            if rule is not None:
                yield ""
            rule = each.rule
            yield line(rule.severity, rule.id, rule.problem)
            yield line("", "who", rule.rejected_by)
            yield line("", "fix", rule.advice)
        yield line("", each.subject, each.detail)
    if violations:
        yield ""
    errors = sum(each.rule.severity == "error" for each in violations)
    tokens = sum(map(tokens_of, listed.tools))
    yield (
        f"{_counted(errors, 'error')}, {_counted(len(violations) - errors, 'hint')}; "
        f"{_counted(len(listed.tools), 'tool')}, about {tokens:,} tokens"
    )


def as_json(violations: Sequence[Violation]) -> list[dict[str, Any]]:
    """Return *violations* as JSON values."""
    return [
        {
            "rule": each.rule.id,
            "severity": each.rule.severity,
            "subject": each.subject,
            "detail": each.detail,
            "problem": each.rule.problem,
            "rejected_by": each.rule.rejected_by,
            "advice": each.rule.advice,
        }
        for each in violations
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
