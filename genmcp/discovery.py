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

The files are imported by the import system, as modules of a package that stands for the folder:
they may import each other relatively. Files and folders with names that begin with `_` or `.` are
left out.
"""

import importlib
import inspect
import itertools
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.suite.collection import KINDS, ComponentKind
from genmcp.suite.suite import Suite

__all__ = ["BrokenSource", "DiscoveredComponent", "Discovery", "scan", "suite"]

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
    """A file, its module's name, and the kinds of components that the file may define."""

    path: str
    module: str
    kinds: tuple[ComponentKind, ...]


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


def suite(location: str | Path | ModuleType, **options: Any) -> Suite:
    """Return a suite of the components that `scan` finds at *location*.

    Args:
        location: a folder, module or package.
        options: options of `Suite`, such as `name` and `version`.

    Raises:
        ConfigurationError: the folder does not exist or has none of the folders `tools`,
            `resources` and `prompts`, or an option of the suite is invalid.
    """
    found = scan(location)
    components: dict[str, Any] = {
        "tools": found.tools,
        "resources": found.resources,
        "prompts": found.prompts,
    }
    return Suite(**components, **options)


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
    importlib.invalidate_caches()  # the import system caches the listings of folders
    found: dict[tuple[str, str], DiscoveredComponent] = {}
    broken: list[BrokenSource] = []
    scanned: set[ModuleType] = set()
    for source in _sources(place):
        try:
            whole = isinstance(place, ModuleType) and place.__name__ == source.module
            module = place if whole else importlib.import_module(source.module)
            assert isinstance(module, ModuleType)
            scanned.add(module)
            values = _defined(module, scanned)
        except _FAILURES as error:
            broken.append(BrokenSource(source.path, error))
            continue
        for value in values:
            try:
                for each in _components_of(source, value, values):
                    known = found.setdefault((each.kind, each.name), each)
                    if known.value is not each.value:
                        raise ConfigurationError(
                            f"{each.kind[:-1]} {each.name!r} is in {known.source} already"
                        )
            except _FAILURES as error:
                broken.append(BrokenSource(source.path, error))
    for each in found.values():
        logger.info("%s %s from %s", each.kind[:-1], each.name, each.source)
    for fault in broken:
        logger.error("left out: %s: %s", fault.source, fault.error, exc_info=fault.error)
    return Discovery(place, [*found.values()], broken)


def _sources(place: Path | ModuleType) -> Iterator[_Source]:
    if isinstance(place, ModuleType):
        if not hasattr(place, "__path__"):
            path = getattr(place, "__file__", None) or place.__name__
            yield _Source(path, place.__name__, KINDS)
        for folder in getattr(place, "__path__", ()):
            yield from _files(Path(folder), place.__name__, KINDS)
        return
    if not place.is_dir():
        raise ConfigurationError(f"discovery: the folder {place} does not exist")
    kinds = [kind for kind in KINDS if (place / kind.name).is_dir()]
    if not kinds:
        raise ConfigurationError(f"discovery: {place} has none of tools, resources, prompts")
    # A package that stands for the folder, under a name of its own: two folders may have files of
    # the same name.
    name = f"genmcp_components_{next(_numbers)}"
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [str(place)]
    for kind in kinds:
        for each in _files(place / kind.name, f"{name}.{kind.name}", (kind,)):
            if Path(each.path).stem != "__init__":
                yield each


def _files(folder: Path, package: str, kinds: tuple[ComponentKind, ...]) -> Iterator[_Source]:
    """Yield each file below *folder*, which is *package*, that is not left out."""
    for file in sorted(folder.rglob("*.py")):
        steps = file.relative_to(folder).with_suffix("").parts
        if not any(step.startswith(("_", ".")) and step != "__init__" for step in steps):
            below = steps[:-1] if steps[-1] == "__init__" else steps
            yield _Source(str(file), ".".join([package, *below]), kinds)


def _defined(module: ModuleType, scanned: Collection[ModuleType]) -> list[Any]:
    """Return the values that *module* defines under public names, each once."""
    # An instance has no attribute that names the module in which it was made. One that another
    # module has as well was imported from there. Modules that were scanned before do not count:
    # they may have imported it from here.
    others: Collection[int] | None = None
    values = {id(each): each for name, each in vars(module).items() if not name.startswith("_")}
    found = []
    for key, value in values.items():
        if inspect.isclass(value) or inspect.isfunction(value):
            imported = value.__module__ != module.__name__
        elif any(kind.accepts(value) for kind in KINDS):
            others = _values_of_others(scanned) if others is None else others
            imported = key in others
        else:
            continue
        if not imported:
            found.append(value)
    return found


def _values_of_others(scanned: Collection[ModuleType]) -> set[int]:
    """Return the identities of the values that all modules except *scanned* have."""
    return {
        id(value)
        for module in [*sys.modules.values()]
        if isinstance(module, ModuleType) and module not in scanned
        for value in [*vars(module).values()]
    }


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
