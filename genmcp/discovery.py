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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, resolve_name, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from genmcp.decorator import FunctionPrompt, FunctionResource, FunctionTool, function_component
from genmcp.errors import ConfigurationError
from genmcp.prompts.prompt import Prompt, PromptRepo, PromptRoute
from genmcp.resources.resource import Resource, ResourceRepo
from genmcp.resources.route import ResourceRoute, TemplateRoute
from genmcp.suite.suite import Suite
from genmcp.tools import Tool, ToolRoute

__all__ = [
    "BrokenSource",
    "DiscoveredComponent",
    "DiscoveredKind",
    "Discovery",
    "Rediscovery",
    "reload",
    "scan",
    "suite",
]

DiscoveredKind = Literal["tools", "resources", "prompts"]

logger = logging.getLogger("genmcp")


class _ComponentBase(NamedTuple):
    """A base class of components, and how to check one.

    labels: the attributes that may hold the name of a component; the first that is set counts. A
        class without a name is a base of others.
    """

    kind: DiscoveredKind
    base: type
    check: Callable[[Any], object]
    labels: Sequence[str]

    def label(self, value: Any) -> str | None:
        """Return the name of *value*, a class or an instance; None if it has none."""
        values = (getattr(value, label, None) for label in self.labels)
        name = next((each for each in values if each is not None), None)
        return None if name is None else str(name)


_BASES: Final = (
    _ComponentBase("tools", Tool, ToolRoute.of, ("name",)),
    _ComponentBase("resources", Resource, ResourceRoute.of, ("uri",)),
    _ComponentBase("resources", ResourceRepo, ResourceRoute.of, ("prefix", "template")),
    _ComponentBase("resources", FunctionResource, TemplateRoute.of, ("uri",)),
    _ComponentBase("prompts", Prompt, PromptRoute.of, ("name",)),
    _ComponentBase("prompts", PromptRepo, PromptRoute.of, ("prefix",)),
)
_DECORATED: Final = (FunctionTool, FunctionPrompt, FunctionResource)
_KINDS: Final[Sequence[DiscoveredKind]] = ("tools", "resources", "prompts")

# The code of a file may raise anything while it is imported, `sys.exit` included. That file is then
# left out.
_FAILURES: Final = (Exception, SystemExit)

_numbers = itertools.count(1)


class DiscoveredComponent(msgspec.Struct, frozen=True, eq=False):
    """A component that was found.

    Attributes:
        kind: `tools`, `resources` or `prompts`.
        name: the name, URI or template; of a repository, its prefix.
        value: the instance to give to a suite. For a class or a function, the instance of it.
        source: the path of the file.
    """

    kind: DiscoveredKind
    name: str
    value: Any
    source: str


class BrokenSource(msgspec.Struct, frozen=True, eq=False):
    """A file that could not be imported, or that has an invalid component."""

    source: str
    error: BaseException


class _Source(msgspec.Struct, frozen=True):
    """A file to import, as *module*, or under a new name if that is None.

    *kinds* are the kinds of components that the file may define.
    """

    path: str
    kinds: tuple[DiscoveredKind, ...]
    module: str | None = None

    def read(self) -> bytes:
        """Return the contents; empty for a module that is not a Python file."""
        return Path(self.path).read_bytes() if self.path.endswith(".py") else b""


class _LoadedSource(msgspec.Struct, frozen=True, eq=False):
    """The components of a file, its *contents* when it was imported, and its module's name."""

    contents: bytes
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

    def _of(self, kind: DiscoveredKind) -> list[Any]:
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
    values = {"tools": found.tools, "resources": found.resources, "prompts": found.prompts}
    given: dict[str, Any] = {kind: each for kind, each in values.items() if each}
    return Suite(name=name, version=version, title=title, instructions=instructions, **given)


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
        if known is None or known.contents != _contents(source):
            _forget(known)
            known = _load(source, None)
        sources[source] = known
    # Modules of removed files would otherwise stay in `sys.modules` for the life of the process.
    for source in found._sources.keys() - sources.keys():
        _forget(found._sources[source])
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
    first: dict[tuple[_ComponentBase | None, str], DiscoveredComponent] = {}
    broken = [each for source in sources.values() for each in source.broken]
    for source in sources.values():
        for each in source.components:
            known = first.setdefault((_base_of(each.value), each.name), each)
            if known is not each:
                words = f"{each.kind[:-1]} {each.name!r} is in {known.source} already"
                broken.append(BrokenSource(each.source, ConfigurationError(words)))
    return Discovery(location, list(first.values()), broken, sources)


def _sources(place: Path | ModuleType) -> list[_Source]:
    if isinstance(place, ModuleType):
        return list(_module_sources(place))
    if not place.is_dir():
        raise ConfigurationError(f"discovery: the folder {place} does not exist")
    folders = {kind: place / kind for kind in _KINDS if (place / kind).is_dir()}
    if not folders:
        raise ConfigurationError(f"discovery: {place} has none of {', '.join(_KINDS)}")
    return [
        _Source(str(file), (kind,))
        for kind, folder in folders.items()
        for file, steps in _files(folder)
        if steps[-1] != "__init__"
    ]


def _module_sources(module: ModuleType) -> Iterator[_Source]:
    name = module.__name__
    if not hasattr(module, "__path__"):
        yield _Source(getattr(module, "__file__", None) or name, tuple(_KINDS), name)
    for folder in getattr(module, "__path__", ()):
        for file, steps in _files(Path(folder)):
            below = steps[:-1] if steps[-1] == "__init__" else steps
            yield _Source(str(file), tuple(_KINDS), ".".join([name, *below]))


def _files(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield each file below *folder* that is not left out, with the parts of its path."""
    for file in sorted(folder.rglob("*.py")):
        steps = file.relative_to(folder).with_suffix("").parts
        if not any(step.startswith(("_", ".")) and step != "__init__" for step in steps):
            yield file, steps


def _contents(source: _Source) -> bytes | None:
    with suppress(OSError):
        return source.read()
    return None


def _load(source: _Source, place: Path | ModuleType | None) -> _LoadedSource:
    """Import *source*, and return its components. If *place* is its module, use that module."""
    contents, module = b"", None
    try:
        contents = source.read()
        if isinstance(place, ModuleType) and place.__name__ == source.module:
            module = place
        elif source.module is not None:
            module = importlib.import_module(source.module)
        else:
            module = _new_module(source.path)
        components, broken = _components(source, _defined(module, ast.parse(contents)))
    except _FAILURES as error:
        return _LoadedSource(contents, None, (), [BrokenSource(source.path, error)])
    return _LoadedSource(contents, module.__name__, components, broken)


class _Loader(SourceFileLoader):
    """A loader without the bytecode cache, which would miss a second edit within one second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _new_module(path: str) -> ModuleType:
    """Import the file at *path* under a unique name."""
    name = f"genmcp_component_{next(_numbers)}_{Path(path).stem}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, path))
    assert spec is not None and spec.loader is not None
    # Registered before it runs: dataclasses and pickle look up the module of a class.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _forget(source: _LoadedSource | None) -> None:
    if source is not None and source.module is not None:
        sys.modules.pop(source.module, None)


def _defined(module: ModuleType, tree: ast.Module) -> list[Any]:
    """Return the values that *module* defines under public names, each once."""
    imported = {id(value) for value in _imported(module, tree)}
    values = {
        id(value): value
        for name, value in vars(module).items()
        if not name.startswith("_") and id(value) not in imported
    }
    # A class or function that was defined in another module, and came here by `import module` and
    # an assignment, is left out. Its `__module__` shows this.
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
) -> tuple[Sequence[DiscoveredComponent], Sequence[BrokenSource]]:
    components, broken = [], []
    for value in values:
        try:
            component = _component(source, value, values)
        except _FAILURES as error:
            broken.append(BrokenSource(source.path, error))
            continue
        if component is not None:
            components.append(component)
    return components, broken


def _component(source: _Source, value: Any, values: Sequence[Any]) -> DiscoveredComponent | None:
    """Return the component for *value*; None if *value* is not a component.

    Raises:
        ConfigurationError: the component is invalid, or belongs in another folder.
    """
    if inspect.isclass(value):
        value = _instance(value, values)
    elif inspect.isroutine(value):
        value = _decorated(value)
    base = _base_of(value)
    if base is None:
        return None
    base.check(value)
    name = str(base.label(value))
    if base.kind not in source.kinds:
        raise ConfigurationError(f"{base.kind[:-1]} {name!r} belongs below {base.kind}/")
    return DiscoveredComponent(base.kind, name, value, source.path)


def _base_of(value: Any) -> _ComponentBase | None:
    fits = issubclass if inspect.isclass(value) else isinstance
    return next((each for each in _BASES if fits(value, each.base)), None)


def _instance(cls: type, values: Sequence[Any]) -> Any:
    """Return an instance of *cls* if *cls* is a component, else None.

    *cls* is not a component if it is abstract, if it lacks a name, if *values* has instances of it,
    or if it needs arguments and *values* has subclasses of it.

    Raises:
        ConfigurationError: *cls* is a component that needs arguments.
    """
    base = _base_of(cls)
    if base is None or inspect.isabstract(cls) or any(type(each) is cls for each in values):
        return None
    try:
        made = cls()
    except TypeError as error:
        is_base = any(cls in getattr(each, "__mro__", ())[1:] for each in values)
        if is_base or base.label(cls) is None:
            return None
        raise ConfigurationError(
            f"{cls.__name__} takes arguments; define an instance of it in the file: {error}"
        ) from error
    return None if base.label(made) is None else made


def _decorated(function: Any) -> Any:
    """Return the component of a decorated *function*, else None."""
    # A decorator leaves the function as it is, and attaches the component to it.
    for kind in _DECORATED:
        with suppress(ConfigurationError):
            return function_component(kind, function)
    return None
