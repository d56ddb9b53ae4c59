"""`Skills`: the skills in a folder, as an extension of a server (SEP-2640)."""

import logging
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from genmcp.channel import ChangeNotifier, Channel
from genmcp.content import guessed_type
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.extensions.extension import Extension
from genmcp.extensions.front_matter import FrontMatterError, read_front_matter
from genmcp.extensions.skill_entries import (
    FOLDER_TYPE,
    MAX_BYTES,
    MAX_FILES,
    METHODS,
    SKILL_FILE,
    SKILLS,
    GetSkillParams,
    GetSkillResult,
    ListSkillsParams,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    SkillEntry,
    SkillResource,
    entry_fault,
)
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.value import Result
from genmcp.resources.directory import Directory, Names

logger = logging.getLogger("genmcp")

_PAGE: Final = 50  # skills; an entry has up to 512 files
_CHILDREN: Final = 200  # in one page of a folder
_MAX_DEPTH: Final = 16  # of folders
_MAX_SKILLS: Final = 2_000
_MAX_LOOKED: Final = 20_000  # folders, hidden files, and files outside of skills
_CACHING: Final[Mapping[str, Any]] = {"ttl_ms": 0, "cache_scope": "private"}


class Skills(Extension):
    """The skills in a folder: each folder in it, at any depth, that has a `SKILL.md`.

        Suite("shop", extensions=[Skills("skills")])

    The file `references/sizes.md` of the skill in `skills/parts/fasteners` is the resource
    `skill://parts/fasteners/references/sizes.md`. The folder may also be one skill itself. Hidden
    files and folders are left out. The folder is read again for each request about skills, so that
    it may change; clients are told of changes that such a request finds.

    Args:
        root: the folder.

    Raises:
        ConfigurationError: the folder does not exist, or a skill in it is refused: for its front
            matter, a link or special file among its files, or the limits of 512 files and 16 MiB.
            A skill that becomes so later is left out, and a warning is logged.
    """

    name = SKILLS
    settings: Mapping[str, Any] = {"directoryRead": True}
    methods = METHODS

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._files = SkillFiles(root)
        self._files.begin()
        self.resources = (self._files,)

    async def handle(self, request: Request, channel: Channel) -> Result:
        """Return a page of the skills, an entry, or a page of a folder.

        Raises:
            InvalidParams: there is no such skill or folder.
        """
        snapshot = await channel.in_thread(self._files.refreshed, channel.changes)
        match request.params:
            case ListSkillsParams(cursor=cursor):
                uris, following = _page(snapshot.entries, cursor, _PAGE)
                skills = [snapshot.entries[uri] for uri in uris]
                return ListSkillsResult(skills=skills, next_cursor=following, **_CACHING)
            case GetSkillParams(uri=uri) if uri in snapshot.entries:
                return GetSkillResult(skill=snapshot.entries[uri], **_CACHING)
            case ReadDirectoryParams(uri=uri, cursor=cursor) if uri in snapshot.children:
                children = snapshot.children[uri]
                uris, following = _page(children, cursor, _CHILDREN)
                found = [children[uri] for uri in uris]
                return ReadDirectoryResult(resources=found, next_cursor=following, **_CACHING)
            case GetSkillParams(uri=uri):
                raise InvalidParams("No skill is served at this URI", {"uri": uri})
        raise InvalidParams("This URI is not that of a folder", {"uri": request.key})


class SkillSnapshot(msgspec.Struct, frozen=True):
    """All skills of a folder at one time. Replaced when the folder has changed.

    Attributes:
        entries: by the URI of `SKILL.md`.
        files: by URI.
        children: by the URI of a folder, its direct children by URI.
        refused: by the path of a skill, why it is left out.
    """

    entries: Mapping[str, SkillEntry] = {}
    files: Mapping[str, SkillResource] = {}
    children: Mapping[str, Mapping[str, ResourceDefinition]] = {}
    refused: Mapping[str, str] = {}


class _Draft:
    """A skill that is being read: its folder, its files, and why it is refused.

    *around* are the skills that it is in, whose files its files are, too.
    """

    def __init__(self, folder: Names, around: Sequence["_Draft"]) -> None:
        self.folder = folder
        self.around = (*around, self)
        self.files: dict[Names, os.stat_result] = {}
        self.fault: str | None = None


class _Content(NamedTuple):
    """What is known of the content of a file, as long as its status is the same."""

    status: tuple[int, ...]
    digest: str
    size: int
    front_matter: dict[str, Any] | str | None  # of a SKILL.md; a str: why it has none


class _TooMany(Exception):
    """The folder has more files, or skills, than are looked at."""


class SkillFiles(Directory):
    """The files of the skills in a folder, and no others. Owned by `Skills`.

    The methods block, and may be called from any thread. Several servers behind a hub may have
    skills: the prefix is *shared*.
    """

    shared = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root, prefix="skill://", name="skills", max_bytes=MAX_BYTES)
        self.template = None  # the URIs of files are in the entries
        self._whole = _is_file(self._path((SKILL_FILE,)))
        if self._whole:  # the folder is one skill itself, whose name begins the URIs
            self.prefix = f"skill://{quote(self._root.name, safe='')}/"
        self._snapshot = SkillSnapshot()
        self._known: dict[Names, _Content] = {}
        self._lock = threading.Lock()
        self._begun = self._ended = 0  # scans

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return the `SKILL.md` of each skill."""
        snapshot = self.refreshed(channel.changes)
        return [_definition(snapshot, uri) for uri in snapshot.entries]

    def read(self, key: Names, channel: Channel, /) -> str | bytes | None:
        """Return the contents of a file of a skill; None if no skill has it.

        They are what the entry of the skill states: a client rejects all else.

        Raises:
            InvalidParams: the file changes at this moment.
        """
        uri = self._uri(key)
        for snapshot in (self._snapshot, None):
            known = (snapshot or self.refreshed(channel.changes)).files.get(uri)
            data = None if known is None else self._data(key)
            if known is not None and data is not None and _digest(data) == known.digest:
                try:
                    return data.decode()
                except UnicodeDecodeError:
                    return data
        if known is None:
            return None
        raise InvalidParams("The file changes while it is read", {"uri": uri})

    def begin(self) -> None:
        """Read the skills for the first time.

        Raises:
            ConfigurationError: one of them is refused, or there are too many files.
        """
        try:
            self._snapshot = self._scan()
        except _TooMany as error:
            raise ConfigurationError(f"Skills: {self.root}: {error}") from None
        for path, reason in self._snapshot.refused.items():
            raise ConfigurationError(f"Skills: {self.root}: {path} is refused: {reason}")

    def refreshed(self, changes: ChangeNotifier) -> SkillSnapshot:
        """Return the skills as they are now, and announce what has changed."""
        wanted = self._begun + 1
        with self._lock:
            if self._ended >= wanted:  # callers that wait for one scan share the next one
                return self._snapshot
            self._begun += 1
            before = found = self._snapshot
            try:
                found = self._scan()
            except _TooMany as error:
                logger.error("%r: %s: the skills stay as they were", self, error)
            self._ended = self._begun
            if found != before:
                self._snapshot = found
                self._announce(before, changes)
            return self._snapshot

    def _announce(self, before: SkillSnapshot, changes: ChangeNotifier) -> None:
        now = self._snapshot
        for path, reason in now.refused.items():
            if before.refused.get(path) != reason:
                logger.warning("%r: %s is left out: %s", self, path, reason)
        if before.entries != now.entries:
            changes.resources_list_changed()
        for uri, file in now.files.items():
            if before.files.get(uri, file) != file:
                changes.resource_updated(uri)

    def _scan(self) -> SkillSnapshot:
        """Read the skills. The contents of files that have not changed are not read again.

        Raises:
            _TooMany: there are too many files or skills.
        """
        entries: dict[str, SkillEntry] = {}
        refused: dict[str, str] = {}
        known, self._known = self._known, {}
        for draft in self._drafts():
            outer = [each.fault for each in draft.around if each.fault]
            found = outer[-1] if outer else self._entry(draft, known)
            if isinstance(found, SkillEntry):
                entries[found.uri] = found
            else:
                draft.fault = found
                refused["/".join(draft.folder) or "."] = found
        files = {
            file.uri: file
            for entry in entries.values()
            for file in entry.resources
            if isinstance(file, SkillResource)
        }
        return SkillSnapshot(dict(sorted(entries.items())), files, _tree(entries, files), refused)

    def _drafts(self) -> Iterator[_Draft]:
        """Return the skills, each before those in it, with the status of their files.

        Raises:
            _TooMany: there are too many files or skills.
        """
        drafts: list[_Draft] = []
        pending: list[tuple[Names, Sequence[_Draft]]] = [((), ())]
        looked = 0
        while pending:
            folder, around = pending.pop()
            if (folder or self._whole) and _is_file(self._path((*folder, SKILL_FILE))):
                drafts.append(_Draft(folder, around))
                around = drafts[-1].around
            if len(drafts) > _MAX_SKILLS:
                raise _TooMany(f"it has more than {_MAX_SKILLS} skills")
            for entry in _entries(self._path(folder)):
                if around and any(each.fault for each in around):
                    break  # with that skill, those in it are refused
                is_folder = entry.is_dir(follow_symlinks=False)
                looked += is_folder or not around or entry.name.startswith(".")
                if looked > _MAX_LOOKED:
                    raise _TooMany(f"it has more than {_MAX_LOOKED} folders and other files")
                if entry.name.startswith("."):
                    continue
                names = (*folder, entry.name)
                if not is_folder:
                    for each in around:
                        self._add(each, names, entry)
                elif not self._allows(entry.name) or len(names) > _MAX_DEPTH:
                    for each in around:
                        each.fault = f"the folder {entry.name!r} is too deep, or its name no URI"
                else:
                    pending.append((names, around))
        yield from drafts

    def _add(self, draft: _Draft, names: Names, entry: os.DirEntry[str]) -> None:
        """Add a file to a skill, or refuse the skill because of it."""
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            draft.fault = f"{entry.name!r} is a link or a special file"
        elif not self._allows(entry.name):
            draft.fault = f"the name {entry.name!r} can be in no URI"
        elif len(draft.files) >= MAX_FILES:
            draft.fault = f"it has more than {MAX_FILES} files"
        draft.files[names] = status

    def _entry(self, draft: _Draft, known: Mapping[Names, _Content]) -> SkillEntry | str:
        """Return the entry of a skill, or why it is refused."""
        if sum(status.st_size for status in draft.files.values()) > MAX_BYTES:
            return f"its files have more than {MAX_BYTES} bytes"
        resources = []
        for names, status in sorted(draft.files.items()):
            content = self._content(names, status, known)
            if content is None:
                return f"{names[-1]} cannot be read"
            resources.append(SkillResource(self._uri(names), content.digest, content.size))
        front_matter = self._known[(*draft.folder, SKILL_FILE)].front_matter
        if not isinstance(front_matter, dict):
            return front_matter or ""
        entry = SkillEntry(self._uri((*draft.folder, SKILL_FILE)), front_matter, resources)
        return entry_fault(entry) or entry

    def _content(
        self, names: Names, status: os.stat_result, known: Mapping[Names, _Content]
    ) -> _Content | None:
        """Return what is known of the content of a file, which is read if it has changed."""
        state = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
        content = self._known.get(names) or known.get(names)
        if content is None or content.status != state:
            data = self._data(names)
            if data is None or len(data) > MAX_BYTES:
                return None
            front_matter: dict[str, Any] | str | None = None
            if names[-1] == SKILL_FILE:
                try:
                    front_matter = read_front_matter(data)
                except FrontMatterError as error:
                    front_matter = str(error)
            content = _Content(state, _digest(data), len(data), front_matter)
        self._known[names] = content
        return content

    def _uri(self, names: Names) -> str:
        return self.prefix + "/".join(quote(name, safe="") for name in names)


def _page(
    uris: Mapping[str, object], cursor: str | None, size: int
) -> tuple[Sequence[str], str | None]:
    """Return the URIs after *cursor*, at most *size*, and the cursor of the next page."""
    after = [uri for uri in uris if cursor is None or uri > cursor]
    return after[:size], after[size - 1] if len(after) > size else None


def _definition(snapshot: SkillSnapshot, uri: str) -> ResourceDefinition:
    """Return the list entry of a file."""
    return _file(snapshot.entries, snapshot.files[uri])


def _file(entries: Mapping[str, SkillEntry], file: SkillResource) -> ResourceDefinition:
    entry = entries.get(file.uri)
    return ResourceDefinition(
        file.uri,
        unquote(file.uri.rpartition("/")[2]) if entry is None else entry.frontmatter["name"],
        description=None if entry is None else entry.frontmatter["description"],
        mime_type=guessed_type(file.uri),
        size=file.size,
    )


def _tree(
    entries: Mapping[str, SkillEntry], files: Mapping[str, SkillResource]
) -> dict[str, dict[str, ResourceDefinition]]:
    """Return the direct children of each folder that has files of skills."""
    tree: dict[str, dict[str, ResourceDefinition]] = {}
    for file in files.values():
        child = _file(entries, file)
        while (folder := child.uri.rpartition("/")[0]) != "skill:/":
            known = folder in tree
            tree.setdefault(folder, {})[child.uri] = child
            if known:
                break
            child = ResourceDefinition(
                folder, unquote(folder.rpartition("/")[2]), mime_type=FOLDER_TYPE
            )
    return {folder: dict(sorted(children.items())) for folder, children in tree.items()}


def _entries(path: os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder; nothing if it has gone, or cannot be read."""
    try:
        with os.scandir(path) as found:
            yield from found
    except OSError as error:
        logger.debug("%s cannot be read: %s", path, error)


def _is_file(path: os.PathLike[str]) -> bool:
    """Return whether *path* is a file, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"
