"""Discovery of components in a folder of files, a module or a package.

    components/
        tools/weather/forecast.py
        resources/manuals.py
        prompts/review.py

    suite = discovery.suite(Path(__file__).parent / "components", name="studio", version="1.0")

Components are the values that a `Suite` accepts: a class of a tool, resource or prompt, an instance
of such a class, or a decorated function. Names that a file imports, or that begin with an
underscore, are left out. A class needs a name, and is called without arguments to get an instance.
If the file defines instances of a class, they are the components, and the class is not.

Each file of a folder becomes a module of its own, which other files cannot import: code that
several files share belongs in a module of the application. Files and folders with names that begin
with `_` or `.` are left out.
"""

import ast
import importlib
import inspect
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import (
    cache_from_source,
    module_from_spec,
    resolve_name,
    spec_from_file_location,
)
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.suite.collection import KINDS, ComponentKind
from genmcp.suite.suite import Suite

__all__ = [
    "BrokenSource",
    "DiscoveredComponent",
    "Discovery",
    "Rediscovery",
    "reload",
    "scan",
    "suite",
]

logger = logging.getLogger("genmcp")

# The code of a file may raise anything while it is imported, `sys.exit` included. That file is then
# left out.
_FAILURES: Final = (Exception, SystemExit)
# The attributes that may name a component. A class without any of them is a base of others.
_LABELS: Final = ("name", "uri", "prefix", "template")

_numbers = itertools.count(1)


class DiscoveredComponent(msgspec.Struct, frozen=True, eq=False):
    """A component that was found.

    Attributes:
        kind: `tools`, `resources` or `prompts`.
        name: the name, URI, template, or prefix of a repository, as `Suite.remove` takes it.
        value: the instance to give to a suite. For a class or a function, the instance of it.
        source: the path of the file.
    """

    kind: str
    name: str
    value: Any
    source: str


class BrokenSource(msgspec.Struct, frozen=True, eq=False):
    """A file that could not be imported, or that has an invalid component."""

    source: str
    error: BaseException


class _Source(NamedTuple):
    """A file to import, as *module*, or under a new name if that is None.

    *kinds* are the kinds of components that the file may define.
    """

    path: str
    kinds: tuple[ComponentKind, ...]
    module: str | None = None

    def read(self) -> bytes | None:
        """Return the contents; None if it cannot be read, or is not a Python file."""
        with suppress(OSError):
            return Path(self.path).read_bytes() if self.path.endswith(".py") else None
        return None


class _LoadedSource(NamedTuple):
    """The components of a file, its *contents* when it was imported, and its module's name."""

    contents: bytes | None
    module: str | None
    components: Sequence[DiscoveredComponent]
    broken: Sequence[BrokenSource]


class Discovery(msgspec.Struct, frozen=True, eq=False):
    """The components at a *location*, in the order of the files' names and of their lines.

    Attributes:
        location: the folder, module or package.
        components: all components.
        broken: the files and components that were left out, with their errors.
    """

    location: Path | ModuleType
    components: Sequence[DiscoveredComponent]
    broken: Sequence[BrokenSource]
    _sources: dict[_Source, _LoadedSource]

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

    def _of(self, kind: str) -> list[Any]:
        return [each.value for each in self.components if each.kind == kind]


class Rediscovery(msgspec.Struct, frozen=True, eq=False):
    """The result of `reload`. All components of a changed file are removed and added.

    Attributes:
        current: the result of the new scan.
        added: the components that the earlier scan did not find.
        removed: the components that only the earlier scan found.
    """

    current: Discovery
    added: Sequence[DiscoveredComponent]
    removed: Sequence[DiscoveredComponent]


def suite(
    location: str | Path | ModuleType,
    *,
    name: str,
    version: str,
    title: str | None = None,
    instructions: str | None = None,
) -> Suite:
    """Return a suite of the components that `scan` finds at *location*.

    Args:
        location: a folder, module or package.
        name: the name of the suite.
        version: its version.
        title: its title for people. Default None.
        instructions: its instructions for the model. Default None.

    Raises:
        ConfigurationError: the folder does not exist or has none of the folders `tools`,
            `resources` and `prompts`, or an argument of the suite is invalid.
    """
    found = scan(location)
    return Suite(
        name,
        version=version,
        title=title,
        instructions=instructions,
        tools=found.tools,
        resources=found.resources,
        prompts=found.prompts,
    )


def scan(location: str | Path | ModuleType) -> Discovery:
    """Import the files at *location*, and return their components.

    Each component is logged. A broken file or component is logged with its traceback and left out.

    Args:
        location: a folder, with files below its folders `tools`, `resources` and `prompts`; a
            relative path starts at the current directory. Or a module, or a package with all its
            modules, which are imported as usual and may mix the kinds.

    Raises:
        ConfigurationError: the folder does not exist, or has none of the three folders.
    """
    place = location if isinstance(location, ModuleType) else Path(location).absolute()
    found = _discovery(place, {source: _load(source, place) for source in _sources(place)})
    _log(found.components, found.broken)
    return found


def reload(found: Discovery) -> Rediscovery:
    """Scan the location of *found* again, for development.

    Files that have changed are imported again. Other files are not, even if a module that they
    import has changed.

    Raises:
        ConfigurationError: the folder does not exist, or has none of the three folders.
    """
    importlib.invalidate_caches()  # the import system caches the listings of folders
    sources: dict[_Source, _LoadedSource] = {}
    for source in _sources(found.location):
        known = found._sources.get(source)
        if known is None or known.contents != source.read():
            _forget(source, known)
            known = _load(source, None)
        sources[source] = known
    # Modules of removed files would otherwise stay in `sys.modules` for the life of the process.
    for source in found._sources.keys() - sources.keys():
        _forget(source, found._sources[source])
    current = _discovery(found.location, sources)
    added = [each for each in current.components if each not in found.components]
    removed = [each for each in found.components if each not in current.components]
    # Errors that the earlier scan has logged are not logged again.
    before = {(each.source, str(each.error)) for each in found.broken}
    _log(added, [each for each in current.broken if (each.source, str(each.error)) not in before])
    return Rediscovery(current, added, removed)


def _log(components: Iterable[DiscoveredComponent], broken: Iterable[BrokenSource]) -> None:
    for each in components:
        logger.info("%s %s from %s", each.kind[:-1], each.name, each.source)
    for fault in broken:
        logger.error("left out: %s: %s", fault.source, fault.error, exc_info=fault.error)


def _discovery(location: Path | ModuleType, sources: dict[_Source, _LoadedSource]) -> Discovery:
    """Combine the components of *sources*.

    If components of one kind have the same name, the first is kept, and the others are broken.
    """
    first: dict[tuple[str, str], DiscoveredComponent] = {}
    broken = [each for source in sources.values() for each in source.broken]
    for each in (component for source in sources.values() for component in source.components):
        known = first.setdefault((each.kind, each.name), each)
        if known is not each:
            words = f"{each.kind[:-1]} {each.name!r} is in {known.source} already"
            broken.append(BrokenSource(each.source, ConfigurationError(words)))
    return Discovery(location, list(first.values()), broken, sources)


def _sources(place: Path | ModuleType) -> list[_Source]:
    if isinstance(place, ModuleType):
        return list(_module_sources(place))
    if not place.is_dir():
        raise ConfigurationError(f"discovery: the folder {place} does not exist")
    kinds = [kind for kind in KINDS if (place / kind.name).is_dir()]
    if not kinds:
        raise ConfigurationError(f"discovery: {place} has none of tools, resources, prompts")
    return [
        _Source(str(file), (kind,))
        for kind in kinds
        for file, steps in _files(place / kind.name)
        if steps[-1] != "__init__"
    ]


def _module_sources(module: ModuleType) -> Iterator[_Source]:
    name = module.__name__
    if not hasattr(module, "__path__"):
        yield _Source(getattr(module, "__file__", None) or name, KINDS, name)
    for folder in getattr(module, "__path__", ()):
        for file, steps in _files(Path(folder)):
            below = steps[:-1] if steps[-1] == "__init__" else steps
            yield _Source(str(file), KINDS, ".".join([name, *below]))


def _files(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield each file below *folder* that is not left out, with the parts of its path."""
    for file in sorted(folder.rglob("*.py")):
        steps = file.relative_to(folder).with_suffix("").parts
        if not any(step.startswith(("_", ".")) and step != "__init__" for step in steps):
            yield file, steps


def _load(source: _Source, place: Path | ModuleType | None) -> _LoadedSource:
    """Import *source*, and return its components. If *place* is its module, use that module."""
    contents = source.read()
    try:
        if isinstance(place, ModuleType) and place.__name__ == source.module:
            module = place
        elif source.module is not None:
            module = importlib.import_module(source.module)
        else:
            module = _import_file(source.path)
        values = _defined(module, ast.parse(contents or b""))
    except _FAILURES as error:
        return _LoadedSource(contents, None, (), [BrokenSource(source.path, error)])
    components, broken = list[DiscoveredComponent](), list[BrokenSource]()
    for value in values:
        try:
            components += _components_of(source, value, values)
        except _FAILURES as error:
            broken.append(BrokenSource(source.path, error))
    return _LoadedSource(contents, module.__name__, components, broken)


def _import_file(path: str) -> ModuleType:
    """Import the file at *path* under a unique name."""
    name = f"genmcp_component_{next(_numbers)}_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    # Registered before it runs: dataclasses and pickle look up the module of a class.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget(source: _Source, loaded: _LoadedSource | None) -> None:
    """Remove the module of *source*, and its bytecode: a second edit within a second is missed."""
    if loaded is not None and loaded.module is not None:
        sys.modules.pop(loaded.module, None)
    if source.path.endswith(".py"):
        Path(cache_from_source(source.path)).unlink(missing_ok=True)


def _defined(module: ModuleType, tree: ast.Module) -> list[Any]:
    """Return the values that *module* defines under public names, each once."""
    imported = {id(value) for value in _imported(module, tree)}
    values = {
        id(value): value
        for name, value in vars(module).items()
        if not name.startswith("_") and id(value) not in imported
    }
    # A class or function that came here by `import module` and an assignment is left out, too.
    return [
        value
        for value in values.values()
        if not (inspect.isclass(value) or inspect.isfunction(value))
        or value.__module__ == module.__name__
    ]


def _imported(module: ModuleType, tree: ast.Module) -> Iterator[Any]:
    """Yield the values that *module* imports by name.

    The import statements are read, because an instance has no attribute that names the module in
    which it was made.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            package = module.__package__ if node.level else None
            origin = sys.modules.get(resolve_name(relative, package))
            for alias in node.names:
                if alias.name == "*":
                    yield from vars(origin).values() if origin else ()
                else:
                    yield getattr(origin, alias.name, None)


def _components_of(
    source: _Source, value: Any, values: Sequence[Any]
) -> Sequence[DiscoveredComponent]:
    """Return the components that *value* is: several for a function under several decorators.

    Raises:
        ConfigurationError: the component is invalid, or belongs in another folder.
    """
    if inspect.isclass(value):
        value = _instance(value, values)
    found = []
    for kind in KINDS:
        if kind.accepts(value):
            route = kind.route_of(value)
            if kind not in source.kinds:
                raise ConfigurationError(
                    f"{kind.name[:-1]} {route.pattern!r} belongs below {kind.name}/"
                )
            found.append(DiscoveredComponent(kind.name, route.pattern, route.provider, source.path))
    return found


def _instance(cls: type, values: Sequence[Any]) -> Any:
    """Return an instance of *cls* if *cls* is a component, else None.

    *cls* is not a component if it is abstract, if it lacks a name, if *values* has instances of it,
    or if it needs arguments and *values* has subclasses of it.

    Raises:
        ConfigurationError: *cls* is a component that needs arguments.
    """
    is_kind = any(kind.accepts(cls) for kind in KINDS)
    if not is_kind or inspect.isabstract(cls) or any(type(each) is cls for each in values):
        return None
    try:
        made = cls()
    except TypeError as error:
        is_base = any(cls in getattr(each, "__mro__", ())[1:] for each in values)
        if is_base or not _is_named(cls):
            return None
        raise ConfigurationError(
            f"{cls.__name__} takes arguments; define an instance of it in the file: {error}"
        ) from error
    return made if _is_named(made) else None


def _is_named(value: Any) -> bool:
    return any(getattr(value, label, None) is not None for label in _LABELS)
