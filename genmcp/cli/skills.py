"""The command `genmcp skills`: lists the skills of a server, and shows their files."""

from typing import Any

import click

from genmcp.cli.output import CommandError, OutputWriter, one_line
from genmcp.cli.parsing import example, suggestion
from genmcp.cli.remote import run_remote
from genmcp.cli.target import TARGET_HELP, RemoteOptions, remote_options
from genmcp.cli.terminal import StatusLine
from genmcp.client.client import Client
from genmcp.extensions.remote_skills import Skill


@click.command(
    "skills",
    epilog=example(
        "skills server.py",
        "skills server.py refunds",
        "skills server.py refunds references/rules.md",
        about=TARGET_HELP,
    ),
)
@remote_options
@click.argument("name", required=False)
@click.argument("path", required=False)
def skills(options: RemoteOptions, name: str | None, path: str | None) -> None:
    """List the skills of the server TARGET, or show the skill NAME, or its file PATH.

    NAME is a name, or the URI of a SKILL.md. Nothing is shown that differs from the entry of the
    skill.
    """

    async def fetch(client: Client, status: StatusLine) -> Any:
        if name is None:
            found = await client.skills()
            if not found:
                status.write(f"genmcp: {options.target} has no skills\n")
            return [skill.entry for skill in found]
        skill = await _skill_of(client, name, options.target)
        if path is None:
            return await skill.load()
        return await skill.read(path)

    def write(output: OutputWriter, found: Any) -> None:
        match found:
            case bytes() if not output.is_terminal:
                output.write_bytes(found)
            case bytes():
                output.write_line(found.decode(errors="replace"))
            case str():
                output.write_line(found)
            case entries:
                for entry in entries:
                    output.write_line(f"{entry.frontmatter['name']}  {entry.uri}")
                    output.write_line(f"    {one_line(entry.frontmatter['description'])}")

    run_remote(options, fetch, write)


async def _skill_of(client: Client, name: str, target: object) -> Skill:
    """Return the skill with this name or URI.

    Raises:
        CommandError: there is none, or there are several.
    """
    if "://" in name:
        return await client.skill(name)
    listed = await client.skills()
    found = [skill for skill in listed if skill.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        uris = ", ".join(skill.uri for skill in found)
        raise CommandError(f"several skills have the name {name!r}; give a URI: {uris}")
    hint = suggestion(name, (skill.name for skill in listed))
    raise CommandError(f"{target} has no skill {name!r}{hint}")
