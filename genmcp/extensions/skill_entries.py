"""The messages of the skills extension (SEP-2640), and the rules that an entry of a skill obeys."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.methods import Method
from genmcp.protocol.params import PaginatedRequestParams, RequestParams
from genmcp.protocol.value import CacheableResult, PaginatedResult, Value

SKILLS: Final = "io.modelcontextprotocol/skills"
SKILL_FILE: Final = "SKILL.md"
FOLDER_TYPE: Final = "inode/directory"

# "Limits": what each host supports, and no server should exceed.
MAX_FILES: Final = 512
MAX_BYTES: Final = 16 * 1024 * 1024

# agentskills.io/specification, "name" and "description".
_NAME: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_MAX_DESCRIPTION: Final = 1024
_DETOUR: Final = re.compile(r"[\\?#\x00-\x20\x7f]|%(?:2f|5c|00)", re.IGNORECASE)
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")


class SkillResource(Value):
    """A file of a skill: the SHA-256 digest of its bytes (`sha256:...`), and their number."""

    uri: str
    digest: str
    size: int


class SkillEntry(Value):
    """The entry of a skill.

    *uri* is that of its `SKILL.md`, *frontmatter* the whole front matter of that file. *resources*
    are all files, or `"dynamic"` for a skill whose content is generated.
    """

    uri: str
    frontmatter: Mapping[str, Any]
    resources: Sequence[SkillResource] | Literal["dynamic"]


class ListSkillsParams(PaginatedRequestParams):
    """The params of `skills/list`."""


class ListSkillsResult(PaginatedResult):
    """One page of the skills."""

    skills: Sequence[SkillEntry]


class GetSkillParams(RequestParams):
    """The URI of the `SKILL.md` of a skill."""

    uri: str


class GetSkillResult(CacheableResult):
    """The entry of one skill."""

    skill: SkillEntry


class ReadDirectoryParams(PaginatedRequestParams):
    """The URI of a folder, without a slash at its end."""

    uri: str


class ReadDirectoryResult(PaginatedResult):
    """One page of the direct children of a folder."""

    resources: Sequence[ResourceDefinition]


METHODS: Final = (
    Method("skills/list", ListSkillsParams, ListSkillsResult),
    Method("skills/get", GetSkillParams, GetSkillResult),
    Method("resources/directory/read", ReadDirectoryParams, ReadDirectoryResult),
)


def folder_of(uri: str) -> str:
    """Return the URI of the folder of a skill, given that of its `SKILL.md`; "" for another URI."""
    folder, _, file = uri.rpartition("/")
    return folder if file == SKILL_FILE else ""


def is_within(uri: str, folder: str) -> bool:
    """Return whether *uri* is that of a file in *folder*, written without detours.

    A `..` or an empty name, also percent-encoded, could lead a host out of the folder in which it
    stores the files of a skill.
    """
    return bool(folder) and uri.startswith(f"{folder}/") and _is_direct(uri[len(folder) + 1 :])


def _is_direct(path: str) -> bool:
    names = re.sub("%2e", ".", path, flags=re.IGNORECASE).split("/")
    return path.isascii() and not any(
        name in ("", ".", "..") or _DETOUR.search(name) for name in names
    )


def entry_fault(entry: SkillEntry) -> str | None:
    """Return why *entry* is invalid, or None.

    SEP-2640, "Skill Entries": the name, the description, the URIs and the digests. The limits are
    not among its rules.
    """
    folder, name = folder_of(entry.uri), entry.frontmatter.get("name")
    description = entry.frontmatter.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"the name {name!r} is not one of lower-case letters, digits and single hyphens"
    if not isinstance(description, str) or not 0 < len(description.strip()) <= _MAX_DESCRIPTION:
        return f"it needs a description of at most {_MAX_DESCRIPTION} characters"
    scheme, _, path = folder.partition("://")
    if folder.rpartition("/")[2] != name or not scheme or not _is_direct(path.lstrip("/")):
        return f"its folder must have its name, {name}"
    if isinstance(entry.resources, str):
        return None
    seen = set()
    for each in entry.resources:
        if not is_within(each.uri, folder):
            return f"{each.uri!r} is no file in its folder"
        if each.uri in seen:
            return f"{each.uri} is listed twice"
        if not _DIGEST.fullmatch(each.digest) or each.size < 0:
            return f"{each.uri} has no valid digest or size"
        seen.add(each.uri)
    return None if entry.uri in seen else f"{SKILL_FILE} is not among its files"
