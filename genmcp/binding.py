"""Bound values: values that are texts in JSON, and belong to the client whose call gets them.

`genmcp.handles` has the only kind. What reads types knows this base class alone, so that a server
without handles does not load them.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from genmcp.errors import ContractError, ToolError
from genmcp.faults import Fault

if TYPE_CHECKING:
    from genmcp.core.seal import Seal
    from genmcp.stores.store import Store


_MAX_VALUES: Final = 100
"""The number of bound values in the arguments of a call, each of which is looked up."""

_MAX_WALK: Final = 10_000
"""The number of values, among the arguments of a call, that are searched for the place of a wrong
id: arguments may have a million, and the event loop waits. Those at the top come first."""


class Owner(NamedTuple):
    """The client of a call or a job, and where its values are stored.

    store, seal, audience: those of the mux. principal: the client, None if it is anonymous.
    client: the client that stored data count towards (`Put.client`).
    """

    store: "Store"
    seal: "Seal"
    audience: str
    principal: str | None
    client: str


GetOwner = Callable[[], Owner]


def no_owner(*_: object) -> Owner:
    """Raise ContractError, outside of a call and of the job of a server."""
    raise ContractError(
        "this value has no owner: read it from the arguments of a call or a job of a server, or "
        "write Handle[Cart](id, channel)"
    )


class BoundValue:
    """A value whose JSON form is a text, its id. It can be used where it has an owner."""

    def __init__(self, id: str, get_owner: GetOwner = no_owner) -> None:
        self.id = id
        self.get_owner = get_owner

    def __str__(self) -> str:
        return self.id

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of the ids.

        Raises:
            ConfigurationError: the class cannot be the type of an argument.
        """
        raise NotImplementedError

    async def check(self) -> None:
        """Check that the owner has this value.

        Raises:
            ToolError: it does not exist, or belongs to another client.
        """

    @classmethod
    def read(cls, given: Any) -> Self:
        """Return the value with the id *given*; one of this class unchanged.

        Raises:
            ValueError: *given* is neither.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise ValueError("expected a string")
        value = cls(given)
        value.get_owner, found = _reading.get((no_owner, []))
        found.append(value)
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        as_text = core_schema.to_string_ser_schema()
        return core_schema.no_info_plain_validator_function(cls.read, serialization=as_text)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        return described(cls)


def is_bound(kind: Any) -> bool:
    """Return whether *kind* is a class of bound values."""
    return isinstance(kind, type) and issubclass(kind, BoundValue)


def described(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of *kind*, a type that msgspec does not read (its `schema_hook`)."""
    if not is_bound(kind):
        raise NotImplementedError
    _reading.get((no_owner, []))[1].append(kind)
    schema: dict[str, Any] = kind.schema()
    return schema


def decoded(kind: Any, value: Any) -> Any:
    """Return *value* as *kind*, a type that msgspec does not read (its `dec_hook`)."""
    return kind.read(value) if is_bound(kind) else value


# Types and JSON are read by msgspec and pydantic, which pass nothing on to the hooks above.
_reading: ContextVar[tuple[GetOwner, list[Any]]] = ContextVar("genmcp_bound_values")


@contextmanager
def bound_values(get_owner: GetOwner = no_owner) -> Iterator[list[Any]]:
    """Bind the values that are read in this block to an owner.

    Yields a list of the values, and of the classes of those that are described.
    """
    found: list[Any] = []
    token = _reading.set((get_owner, found))
    try:
        yield found
    finally:
        _reading.reset(token)


async def faults_of(values: Sequence[BoundValue], given: bytes) -> Sequence[Fault]:
    """Return a fault for each id of *values*, read from the JSON *given*, that its owner lacks."""
    if len(values) > _MAX_VALUES:
        return [Fault((), f"{len(values)} ids, but the maximum is {_MAX_VALUES} in a call")]
    wrong = {}
    for each in values:
        try:
            await each.check()
        except ToolError as error:
            wrong[each.id] = str(error)
    places = _places_of(wrong, msgspec.json.decode(given)) if wrong else {}
    return [Fault(places.get(id, ()), text) for id, text in wrong.items()]


def _places_of(ids: Container[str], given: Any) -> Mapping[str, Sequence[str | int]]:
    """Return the paths of *ids* in *given*, which is JSON, of those among its first values."""
    places: dict[str, Sequence[str | int]] = {}
    values: list[tuple[Any, Any]] = [((), given)]  # each with its path: that of its parent, a key
    for path, value in values:  # which grows: the values of a level come before those within them
        if isinstance(value, str) and value in ids and value not in places:
            places[value] = _steps_of(path)
        items: Any = value.items() if isinstance(value, dict) else ()
        items = enumerate(value) if isinstance(value, list) else items
        values += (((path, key), each) for key, each in islice(items, _MAX_WALK - len(values)))
    return places


def _steps_of(path: Any) -> Sequence[str | int]:
    steps = []
    while path:
        path, step = path
        steps.append(step)
    return steps[::-1]
