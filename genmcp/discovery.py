"""Components found where they are written: in a folder of files, a module, a package.

    components/
        tools/weather/forecast.py
        resources/manuals.py
        prompts/review.py

    suite = discovery.suite(Path(__file__).parent / "components", name="studio", version="1.0")

A component is what a suite takes: a class of a tool, resource or prompt, an instance, a function
under a decorator. What a file *defines* is found, not what it imports, nor what has a name that
begins with an underscore. A class needs a name and is made without arguments; one of which the file
has instances is left to them.

Each file of a folder becomes a module of its own, which no other can import: what files share
belongs into a module of the application. Files and folders whose names begin with `_` or `.` are
left out.
"""

import ast
import importlib
import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, resolve_name, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from genmcp.decorator import FunctionPrompt, FunctionTool, function_component
from genmcp.errors import ConfigurationError
from genmcp.prompt.prompt import Prompt, PromptRepo, PromptRoute
from genmcp.resource.resource import Resource, ResourceRepo
from genmcp.resource.route import ResourceRoute
from genmcp.suite.suite import Suite
from genmcp.tool import Tool, ToolRoute

__all__ = ["Broken", "Changes", "Component", "Found", "Kind", "reload", "scan", "suite"]

Kind = Literal["tools", "resources", "prompts"]

logger = logging.getLogger("genmcp")


class _Sort(NamedTuple):
    """What a component may be: its base, what checks it, and the attribute it is known by.

    The first of *labels* that it has; without any it is but a base of others.
    """

    kind: Kind
    base: type
    check: Callable[[Any], object]
    labels: Sequence[str]

    def label(self, value: Any) -> str | None:
        """Return what *value*, a class or an instance, is known by."""
        said = (getattr(value, label, None) for label in self.labels)
        found = next((each for each in said if each is not None), None)
        return None if found is None else str(found)


_SORTS: Final = (
    _Sort("tools", Tool, ToolRoute.of, ("name",)),
    _Sort("resources", Resource, ResourceRoute.of, ("uri",)),
    _Sort("resources", ResourceRepo, ResourceRoute.of, ("prefix", "template")),
    _Sort("prompts", Prompt, PromptRoute.of, ("name",)),
    _Sort("prompts", PromptRepo, PromptRoute.of, ("prefix",)),
)
_DECORATED: Final = (FunctionTool, FunctionPrompt)
_KINDS: Final[Sequence[Kind]] = ("tools", "resources", "prompts")

# What a file does while it is imported is its own affair, and costs that file.
_FAILURES: Final = (Exception, SystemExit)

_numbers = itertools.count(1)


class Component(msgspec.Struct, frozen=True, eq=False):
    """Something that was found: its name (of a repository, its prefix), and the file it is in.

    value: what a suite takes; an instance, also where a class or a function was found.
    """

    kind: Kind
    name: str
    value: Any
    source: str


class Broken(msgspec.Struct, frozen=True, eq=False):
    """A file that could not be imported, or something in it that cannot be a component."""

    source: str
    error: BaseException


class _Source(msgspec.Struct, frozen=True):
    """A file that is imported as *module*, or as a module of its own; *kinds* belong there."""

    path: str
    kinds: tuple[Kind, ...]
    module: str | None = None

    def read(self) -> bytes:
        """Return what is in it; nothing, if it is no file of Python."""
        return Path(self.path).read_bytes() if self.path.endswith(".py") else b""


class _File(msgspec.Struct, frozen=True, eq=False):
    """What a source held when its *contents* were these."""

    contents: bytes
    module: str | None
    components: Sequence[Component]
    broken: Sequence[Broken]


class Found(msgspec.Struct, frozen=True, eq=False):
    """What a scan of *where* found, in the order of the files' names and of their lines."""

    where: Path | ModuleType
    components: Sequence[Component]
    broken: Sequence[Broken]
    files: dict[_Source, _File]

    @property
    def tools(self) -> list[Any]:
        """The tools, for `Suite(tools=...)`."""
        return self._of("tools")

    @property
    def resources(self) -> list[Any]:
        """The resources and their repositories, for `Suite(resources=...)`."""
        return self._of("resources")

    @property
    def prompts(self) -> list[Any]:
        """The prompts and their repositories, for `Suite(prompts=...)`."""
        return self._of("prompts")

    def _of(self, kind: Kind) -> list[Any]:
        return [each.value for each in self.components if each.kind == kind]


class Changes(msgspec.Struct, frozen=True, eq=False):
    """What is found *now*, and what came and went since.

    Of a file that changed everything went, and what it holds now came.
    """

    now: Found
    added: Sequence[Component]
    removed: Sequence[Component]


def suite(
    where: str | Path | ModuleType,
    *,
    name: str,
    version: str,
    title: str | None = None,
    instructions: str | None = None,
) -> Suite:
    """Return a suite of what `scan` finds at *where*.

    Raises:
        ConfigurationError: there is no such folder, or what the suite says of itself is wrong.
    """
    found = scan(where)
    offered = {"tools": found.tools, "resources": found.resources, "prompts": found.prompts}
    given: dict[str, Any] = {kind: values for kind, values in offered.items() if values}
    return Suite(name=name, version=version, title=title, instructions=instructions, **given)


def scan(where: str | Path | ModuleType) -> Found:
    """Return the components at *where*.

    Of a folder they are those below its `tools`, `resources` and `prompts`, any of which may be
    missing; of a module all it defines, of a package also all that its modules define, which are
    imported as usual. A relative path begins at the current folder. Each component is logged;
    what is broken is logged with its traceback, and hinders nothing else.

    Raises:
        ConfigurationError: there is no such folder, or nothing in it to look at.
    """
    place = where if isinstance(where, ModuleType) else Path(where).absolute()
    found = _found(place, {source: _looked_at(source, place) for source in _sources(place)})
    _log(found.components, found.broken)
    return found


def reload(found: Found) -> Changes:
    """Look again where *found* was found, for development.

    A file that changed is run again; one that did not is not, whatever it imports.

    Raises:
        ConfigurationError: there is no such folder any more, or nothing in it to look at.
    """
    importlib.invalidate_caches()  # of folders, which may have new files
    files: dict[_Source, _File] = {}
    for source in _sources(found.where):
        known = found.files.get(source)
        if known is None or known.contents != _contents(source):
            _forget(known)
            known = _looked_at(source, None)
        files[source] = known
    for source in found.files.keys() - files.keys():
        _forget(found.files[source])
    now = _found(found.where, files)
    added = [each for each in now.components if each not in found.components]
    removed = [each for each in found.components if each not in now.components]
    before = {(each.source, str(each.error)) for each in found.broken}
    _log(added, [each for each in now.broken if (each.source, str(each.error)) not in before])
    return Changes(now, added, removed)


def _log(components: Iterable[Component], broken: Iterable[Broken]) -> None:
    for each in components:
        logger.info("%s %s from %s", each.kind[:-1], each.name, each.source)
    for fault in broken:
        logger.error("left out: %s: %s", fault.source, fault.error, exc_info=fault.error)


def _found(where: Path | ModuleType, files: dict[_Source, _File]) -> Found:
    """Put together what *files* hold; the first of a name is the one that counts."""
    first: dict[tuple[_Sort | None, str], Component] = {}
    broken = [each for file in files.values() for each in file.broken]
    for file in files.values():
        for each in file.components:
            known = first.setdefault((_sort_of(each.value), each.name), each)
            if known is not each:
                words = f"{each.kind[:-1]} {each.name!r} is in {known.source} already"
                broken.append(Broken(each.source, ConfigurationError(words)))
    return Found(where, list(first.values()), broken, files)


def _sources(place: Path | ModuleType) -> list[_Source]:
    if isinstance(place, ModuleType):
        return list(_sources_of(place))
    if not place.is_dir():
        raise ConfigurationError(f"discovery: there is no folder {place}")
    folders = {kind: place / kind for kind in _KINDS if (place / kind).is_dir()}
    if not folders:
        raise ConfigurationError(f"discovery: {place} has none of {', '.join(_KINDS)}")
    return [
        _Source(str(file), (kind,))
        for kind, folder in folders.items()
        for file, steps in _files(folder)
        if steps[-1] != "__init__"
    ]


def _sources_of(module: ModuleType) -> Iterator[_Source]:
    name = module.__name__
    if not hasattr(module, "__path__"):
        yield _Source(getattr(module, "__file__", None) or name, tuple(_KINDS), name)
    for folder in getattr(module, "__path__", ()):
        for file, steps in _files(Path(folder)):
            below = steps[:-1] if steps[-1] == "__init__" else steps
            yield _Source(str(file), tuple(_KINDS), ".".join([name, *below]))


def _files(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield each file below *folder* that is not left out, and the steps that lead to it."""
    for file in sorted(folder.rglob("*.py")):
        steps = file.relative_to(folder).with_suffix("").parts
        if not any(step.startswith(("_", ".")) and step != "__init__" for step in steps):
            yield file, steps


def _contents(source: _Source) -> bytes | None:
    with suppress(OSError):
        return source.read()
    return None


def _looked_at(source: _Source, place: Path | ModuleType | None) -> _File:
    """Import *source* and look at what it defines; *place* is a module that is there already."""
    contents, module = b"", None
    try:
        contents = source.read()
        if isinstance(place, ModuleType) and place.__name__ == source.module:
            module = place
        elif source.module is not None:
            module = importlib.import_module(source.module)
        else:
            module = _own_module(source.path)
        components, broken = _components(source, _defined(module, ast.parse(contents)))
    except _FAILURES as error:
        return _File(contents, None, (), [Broken(source.path, error)])
    return _File(contents, module.__name__, components, broken)


class _Loader(SourceFileLoader):
    """A loader without a bytecode cache: that would not see two edits within one second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _own_module(path: str) -> ModuleType:
    """Import the file at *path* under a name nobody else has."""
    name = f"genmcp_component_{next(_numbers)}_{Path(path).stem}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, path))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget(file: _File | None) -> None:
    if file is not None and file.module is not None:
        sys.modules.pop(file.module, None)


def _defined(module: ModuleType, tree: ast.Module) -> list[Any]:
    """Return the values *module* defines under names for others, each once."""
    imported = {id(value) for value in _imports(module, tree)}
    values = {
        id(value): value
        for name, value in vars(module).items()
        if not name.startswith("_") and id(value) not in imported
    }
    return [
        value
        for value in values.values()
        if not (inspect.isclass(value) or inspect.isfunction(value))
        or value.__module__ == module.__name__
    ]


def _imports(module: ModuleType, tree: ast.Module) -> Iterator[Any]:
    """Yield the values that *module* imports by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = getattr(module, "__package__", None)
            relative = "." * node.level + (node.module or "")
            origin = sys.modules.get(resolve_name(relative, package) if node.level else relative)
            for alias in node.names:
                if alias.name == "*":
                    yield from vars(origin).values() if origin else ()
                else:
                    yield getattr(origin, alias.name, None)


def _components(
    source: _Source, values: Sequence[Any]
) -> tuple[Sequence[Component], Sequence[Broken]]:
    components, broken = [], []
    for value in values:
        try:
            component = _component(source, value, values)
        except _FAILURES as error:
            broken.append(Broken(source.path, error))
            continue
        if component is not None:
            components.append(component)
    return components, broken


def _component(source: _Source, value: Any, values: Sequence[Any]) -> Component | None:
    """Return what *value* is as a component, None if it is none.

    Raises:
        ConfigurationError: it should be one, but cannot, or not here.
    """
    if inspect.isclass(value):
        value = _instance(value, values)
    elif inspect.isroutine(value):
        value = _of_function(value)
    sort = _sort_of(value)
    if sort is None:
        return None
    sort.check(value)
    name = str(sort.label(value))
    if sort.kind not in source.kinds:
        raise ConfigurationError(f"{sort.kind[:-1]} {name!r} belongs below {sort.kind}/")
    return Component(sort.kind, name, value, source.path)


def _sort_of(value: Any) -> _Sort | None:
    """Return what *value* may be, an instance or a class; None if it is no component."""
    fits = issubclass if inspect.isclass(value) else isinstance
    return next((sort for sort in _SORTS if fits(value, sort.base)), None)


def _instance(cls: type, values: Sequence[Any]) -> Any:
    """Return an instance of *cls* if it is a component by itself, else None.

    It is not where others are made of it, or derived from it, that are; nor without a name.
    """
    sort = _sort_of(cls)
    if sort is None or inspect.isabstract(cls) or any(type(each) is cls for each in values):
        return None
    try:
        made = cls()
    except TypeError as error:
        is_base = any(cls in getattr(each, "__mro__", ())[1:] for each in values)
        if is_base or sort.label(cls) is None:
            return None
        raise ConfigurationError(
            f"{cls.__name__} takes arguments; put an instance of it there: {error}"
        ) from error
    return None if sort.label(made) is None else made


def _of_function(function: Any) -> Any:
    for kind in _DECORATED:
        with suppress(ConfigurationError):
            return function_component(kind, function)
    return None
