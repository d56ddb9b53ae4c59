"""The skills of a server, as a client sees them (SEP-2640): each read is checked."""

import logging
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

import msgspec

from genmcp.client.blocking import BackgroundLoop, Bridge, blocking
from genmcp.client.errors import ClientError, ProtocolError
from genmcp.extensions.front_matter import FrontMatterError, read_front_matter
from genmcp.extensions.skill_entries import (
    MAX_BYTES,
    SKILLS,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryResult,
    SkillEntry,
    SkillResource,
    entry_fault,
    folder_of,
    is_within,
)
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.resources import ReadResourceResult

logger = logging.getLogger("genmcp.client")

R = TypeVar("R")

# Of all pages of one list: a server must not fill the memory.
_MAX_PAGES: Final = 1_000
_MAX_SKILLS: Final = 10_000
_MAX_FILES: Final = 200_000  # of all skills together
_UNCACHED: Final = {"ttlMs": 0, "cacheScope": "private"}


class SkillRejected(ClientError):
    """A skill differs from its entry: its contents must not be used.

    `Skill.refresh` fetches the present entry, of which a user has to approve again.
    """


class SkillsTarget(Protocol):
    """The methods of a `Client` that skills need."""

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server."""

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request, and return its result as JSON values."""

    async def read(self, uri: str) -> ReadResourceResult:
        """Read a resource."""


class Skill:
    """A skill of a server, as its entry describes it. Returned by `Client.skills`.

    No file is read before `load` or `read`, and none is returned that is not what the entry says:
    its digest, its size, and for `SKILL.md` also its front matter. The text of a skill is that of
    its server: show a model where it comes from, ask the user before anything is run, and ignore
    `allowed-tools` of its front matter (SEP-2640, "Security Considerations").

    Attributes:
        server_name: the server, as errors name it. Skills of two servers may have one URI and name.
        entry: the entry, with the whole front matter, and the digests and sizes of the files.
    """

    def __init__(self, target: SkillsTarget, server_name: str, entry: SkillEntry) -> None:
        self.server_name = server_name
        self._target = target
        self._retrieved = 0
        self._set(entry)

    def __repr__(self) -> str:
        return f"<Skill {self.uri} of {self.server_name}>"

    def _set(self, entry: SkillEntry) -> None:
        self.entry = entry
        self._folder = folder_of(entry.uri)
        self._files: dict[str, SkillResource] | None = None
        if not isinstance(entry.resources, str):
            self._files = {each.uri: each for each in entry.resources}

    @property
    def uri(self) -> str:
        """The URI of its `SKILL.md`."""
        return self.entry.uri

    @property
    def name(self) -> str:
        """Its name, which other skills may have too."""
        name: str = self.entry.frontmatter["name"]
        return name

    @property
    def description(self) -> str:
        """What it is for."""
        description: str = self.entry.frontmatter["description"]
        return description

    @property
    def files(self) -> Mapping[str, SkillResource] | None:
        """Its files by their paths, with digest and size; None if its content is generated."""
        if self._files is None:
            return None
        return {uri[len(self._folder) + 1 :]: file for uri, file in self._files.items()}

    async def load(self) -> str:
        """Return the text of its `SKILL.md`, front matter included.

        Raises:
            SkillRejected: it is not what the entry says.
            ClientError: it could not be read.
        """
        data = await self._read(self.uri)
        try:
            found = read_front_matter(data)
            text = data.decode()
        except (FrontMatterError, UnicodeDecodeError) as error:
            raise self._rejected(f"its front matter cannot be read: {error}") from None
        for key in sorted({*found, *self.entry.frontmatter}):
            if not _equal(found.get(key), self.entry.frontmatter.get(key)):
                raise self._rejected(f"{key} of the front matter differs from its entry")
        return text

    async def read(self, path: str) -> bytes:
        """Return the bytes of the file at a path, such as `references/sizes.md`.

        Raises:
            SkillRejected: the skill has no such file, or its content is not what the entry says.
            ClientError: it could not be read.
        """
        return await self._read(f"{self._folder}/{path}")

    async def folder(self, path: str = "") -> Sequence[ResourceDefinition]:
        """Return what the server has in a folder of the skill now: files and folders.

        Nothing in it becomes a file of the skill by that: `files` are those of its entry. A server
        need not have this (`directoryRead` in the settings of the extension).

        Raises:
            ClientError: the server does not have the folder, or the method.
        """
        uri = f"{self._folder}/{path}" if path else self._folder
        found: list[ResourceDefinition] = []
        async for page in _pages(
            self._target, self.server_name, "resources/directory/read", ReadDirectoryResult, uri
        ):
            found += page.resources
            if len(found) > _MAX_FILES:
                raise ProtocolError(
                    f"a folder has more than {_MAX_FILES} entries", self.server_name
                )
        return [each for each in found if is_within(each.uri, uri)]

    async def refresh(self) -> bool:
        """Fetch the present entry of the skill; return whether it differs.

        Then an approval by the user is over: it was for the former files.

        Raises:
            ClientError: the skill is gone, or its entry is invalid.
        """
        before = self.entry
        self._set((await get_skill(self._target, self.server_name, self.uri)).entry)
        return before != self.entry

    async def _read(self, uri: str) -> bytes:
        known = None if self._files is None else self._files.get(uri)
        if (known is None and self._files is not None) or not is_within(uri, self._folder):
            raise self._rejected(f"{uri} is none of its files")
        result = await self._target.read(uri)
        data = _bytes_of(result, uri)
        if data is None:
            raise self._rejected(f"{uri} was answered with something else")
        if known is None:
            self._retrieved += len(data)
            if self._retrieved > MAX_BYTES:
                raise self._rejected(f"more than {MAX_BYTES} bytes were read of it")
        elif len(data) != known.size:
            raise self._rejected(f"{uri} has {len(data)} bytes, and {known.size} by its entry")
        elif f"sha256:{sha256(data).hexdigest()}" != known.digest:
            raise self._rejected(f"the digest of {uri} differs from that of its entry")
        return data

    def _rejected(self, reason: str) -> SkillRejected:
        return SkillRejected(f"skill {self.uri} of {self.server_name}: {reason}", self.server_name)


class SyncSkill(Bridge[Skill]):
    """A `Skill` with blocking methods. Returned by `SyncClient.skills`."""

    def __init__(self, skill: Skill, loop: BackgroundLoop) -> None:
        self._target = skill
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def entry(self) -> SkillEntry:
        """The entry, with the whole front matter, and the digests and sizes of the files."""
        return self._target.entry

    @property
    def uri(self) -> str:
        """The URI of its `SKILL.md`."""
        return self._target.uri

    @property
    def name(self) -> str:
        """Its name, which other skills may have too."""
        return self._target.name

    @property
    def description(self) -> str:
        """What it is for."""
        return self._target.description

    @property
    def files(self) -> Mapping[str, SkillResource] | None:
        """Its files by their paths; None if its content is generated."""
        return self._target.files

    load = blocking(Skill.load)
    read = blocking(Skill.read)
    folder = blocking(Skill.folder)
    refresh = blocking(Skill.refresh)


async def list_skills(target: SkillsTarget, server_name: str) -> list[Skill]:
    """Return the skills that the server lists; none if it does not have the extension.

    Invalid entries are left out, and a warning is logged.

    Raises:
        ClientError: they could not be listed, or are too many.
    """
    if SKILLS not in (target.capabilities.extensions or ()):
        return []
    found: list[Skill] = []
    files = 0
    async for page in _pages(target, server_name, "skills/list", ListSkillsResult):
        for entry in page.skills:
            files += 1 if isinstance(entry.resources, str) else len(entry.resources)
            if (fault := entry_fault(entry)) is not None:
                logger.warning(
                    "%s: skill %.200r is left out: %.300s", server_name, entry.uri, fault
                )
            else:
                found.append(Skill(target, server_name, entry))
        if len(found) > _MAX_SKILLS or files > _MAX_FILES:
            raise ProtocolError("the list of its skills is too long", server_name)
    return found


async def get_skill(target: SkillsTarget, server_name: str, uri: str) -> Skill:
    """Return the skill whose `SKILL.md` has this *uri*, which need not be listed.

    Raises:
        ClientError: the server has no such skill, or its entry is invalid.
    """
    given = await target.request("skills/get", {"uri": uri})
    entry = _converted(given, GetSkillResult, "skills/get", server_name).skill
    fault = "it is another one" if entry.uri != uri else entry_fault(entry)
    if fault is not None:
        raise SkillRejected(f"skill {uri} of {server_name}: {fault}", server_name)
    return Skill(target, server_name, entry)


async def _pages(
    target: SkillsTarget, server_name: str, method: str, kind: type[R], uri: str | None = None
) -> Any:
    """Yield the pages of a list.

    Raises:
        ProtocolError: there are too many, or one is of another shape.
        ClientError: one could not be read.
    """
    params: dict[str, Any] = {} if uri is None else {"uri": uri}
    seen: set[str] = set()
    while True:
        page: Any = _converted(await target.request(method, params), kind, method, server_name)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen or len(seen) >= _MAX_PAGES:
            raise ProtocolError(f"the list of {method} does not end", server_name)
        seen.add(cursor)
        params = {**params, "cursor": cursor}


def _converted(value: Any, kind: type[R], method: str, server_name: str) -> R:
    try:
        if isinstance(value, msgspec.Struct):  # the client has an extension with types of its own
            value = msgspec.to_builtins(value)
        if isinstance(value, Mapping):
            value = {**_UNCACHED, **value}
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the result of {method} is invalid: {error}", server_name) from None


def _bytes_of(result: ReadResourceResult, uri: str) -> bytes | None:
    """Return the content of *uri* in *result*; None if there is another one, or none."""
    if len(result.contents) != 1 or result.contents[0].uri != uri:
        return None
    (content,) = result.contents
    try:
        if content.text is not None:
            return content.text.encode()
        return None if content.blob is None else b64decode(content.blob, validate=True)
    except (NoBase64, ValueError):
        return None


def _equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; True and 1 are not."""
    if isinstance(one, dict) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, Sequence) and not isinstance(other, str):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
