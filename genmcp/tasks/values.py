"""Values of the application's types as JSON: of jobs, of saved states and of assigns.

Two libraries read types. msgspec reads structs, dataclasses, TypedDicts, dates and the like, and
calls pydantic for the models within them. Any other type, such as a union of models or a path, is
read by pydantic as a whole, if the application has imported it.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NoReturn, Union, get_args, get_origin

import msgspec
from msgspec.msgpack import Ext

from genmcp.binding import BoundValue, is_bound
from genmcp.core.outcome import check_json
from genmcp.errors import ConfigurationError, ContractError

_REMEDY: Final = "use a dataclass, a msgspec.Struct or a pydantic model, or pass a reference to it"
_MAX_DEPTH: Final = 64  # as for JSON, see `check_json`


class Unstorable(ContractError):
    """A value has no JSON form, or another type than its annotation.

    The text has the type, the place and the remedy, and no values: a client may read it.
    """


class Codec(msgspec.Struct, frozen=True):
    """Converts values of one type to JSON (`encode`), and JSON back to that type (`decode`).

    type_name: the name of the type. `encode` and `decode` raise TypeError or ValueError.
    """

    type_name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def codec_of(where: str, hint: Any) -> Codec | None:
    """Return the codec of a type.

    Args:
        where: the name of the values, for the message.
        hint: the type; None if it is unknown.

    Returns:
        None if the type is unknown, or says no more than that its values are JSON.

    Raises:
        ConfigurationError: values of the type have no JSON form.
    """
    if _is_json(hint):
        return None
    try:
        hash(hint)
    except TypeError:  # an annotation of a part, such as pydantic's Field, cannot be hashed
        make = _codec.__wrapped__
    else:
        make = _codec
    try:
        return make(hint)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}; {_REMEDY}") from None


_JSON: Final = (None, NoneType, NoReturn, Any, object, str, int, float, bool, list, dict)
_LISTS: Final = (list, Sequence, Collection, Iterable)


def _is_json(hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        return hint in (*_JSON, *_LISTS, Mapping)
    if origin is Literal:
        return all(type(each) in _JSON for each in arguments)
    if origin is Annotated:
        return _is_json(arguments[0])
    if origin in (dict, Mapping):
        return arguments[0] in (str, Any) and _is_json(arguments[1])
    return origin in (Union, UnionType, *_LISTS) and all(map(_is_json, arguments))


# Cached for the steps of calls, and bounded: types may be made at run time.
@lru_cache(maxsize=1024)
def _codec(hint: Any) -> Codec:
    """Return the codec of a type.

    Raises:
        TypeError: neither library reads it.
    """
    if is_bound(hint):
        return Codec(_name(hint), str, hint.read)
    if _is_of_pydantic(hint):
        return _codec_of_pydantic(hint)
    unknown: list[Any] = []

    def note(kind: Any) -> dict[str, Any]:
        if kind is not object and not _is_of_pydantic(kind):
            unknown.append(kind)
        return {"type": "object"}

    try:
        msgspec.json.schema(hint, schema_hook=note)
        fault = f"{_name(unknown[0])} has no JSON form" if unknown else ""
    except TypeError as error:
        fault = str(error).partition("\n")[0]
    if not fault:
        return Codec(
            _name(hint),
            _to_builtins,
            partial(msgspec.convert, type=hint, dec_hook=_model_of, str_keys=True),
        )
    if "pydantic" not in sys.modules:
        raise TypeError(fault)
    import pydantic

    try:
        pydantic.TypeAdapter(hint).json_schema(mode="serialization")
        return _codec_of_pydantic(hint)
    except pydantic.errors.PydanticUserError:  # it reads types such as `type`, but not from JSON
        raise TypeError(fault) from None


def _is_of_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") or hasattr(kind, "__get_pydantic_core_schema__")


def _codec_of_pydantic(hint: Any) -> Codec:
    import pydantic

    adapter = pydantic.TypeAdapter(hint)
    # `round_trip`: without computed fields, which a model with `extra="forbid"` would not accept.
    dump = partial(adapter.dump_python, mode="json", by_alias=True, round_trip=True)
    # From JSON text: there, a strict model reads a date from a text, unlike from Python values.
    return Codec(
        _name(hint),
        partial(dump, warnings="error"),
        lambda value: adapter.validate_json(msgspec.json.encode(value)),
    )


def _model_of(kind: Any, value: Any) -> Any:
    """Return *value* as *kind*, a type that msgspec does not read."""
    if isinstance(value, kind):
        return value
    return _codec(kind).decode(value)


def json_form(value: Any, *, round_trip: bool = True) -> Any:
    """Return the JSON form of a value that msgspec does not support, such as a pydantic model.

    *round_trip*: whether it can be read back, for which computed fields are left out.

    Raises:
        TypeError: it has none.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BoundValue):
        return value.id
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json", by_alias=True, round_trip=round_trip)
    if type(value).__module__.partition(".")[0] == "pydantic":  # such as a URL
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_to_builtins = partial(msgspec.to_builtins, enc_hook=json_form, str_keys=True)

ANY_TYPE: Final = Codec("Any", _to_builtins, lambda value: value)
"""The codec of values of an unknown type, which are read as JSON."""


def to_json(where: str, value: Any, codec: Codec | None, remedy: str = _REMEDY) -> Any:
    """Return *value* as JSON, which *codec* can read back.

    Args:
        where: the name of the value, which begins the message.
        value: the value.
        codec: the codec of the type that it should have. None: it has to be JSON already.
        remedy: what to do about a value that is not JSON, if there is no codec.

    Raises:
        Unstorable: it has no JSON form, or another type.
    """
    try:
        plain = value if codec is None else codec.encode(value)
        check_json(where, plain, remedy)
        if codec is not None:
            codec.decode(plain)
        return plain
    except ContractError as error:
        raise Unstorable(str(error)) from None
    except (TypeError, ValueError, RecursionError) as error:
        assert codec is not None
        text = f"{where} is {type(value).__name__}, which does not fit {codec.type_name}"
        raise Unstorable(_fault(where, value) or text + _place_of(error)) from error


def _place_of(error: Exception) -> str:
    """Return the place that *error* of msgspec or pydantic names, without the value there."""
    found = re.search(r" - at `\$(.+)`$", str(error))
    place = found[1] if found else ""
    if hasattr(error, "errors"):
        place = "".join(f".{each}" for each in error.errors(include_input=False)[0]["loc"])
    return place and f" (at {place})"


def _fault(where: str, value: Any, depth: int = 0) -> str | None:
    """Return a message about the first part of *value* that has no JSON form; None without one."""
    try:
        _to_builtins(value)
        return None
    except (TypeError, ValueError, RecursionError):
        if depth > _MAX_DEPTH:
            return f"{where} nests deeper than {_MAX_DEPTH} levels"
    for name, each in _members(value):
        if (fault := _fault(f"{where}{name}", each, depth + 1)) is not None:
            return fault
    return f"{where} is {type(value).__name__}, which has no JSON form: {_REMEDY}"


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f".{key}", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", each) for index, each in enumerate(value))
    else:
        kind = type(value)
        names = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__")
        for name in next((found for each in names if (found := getattr(kind, each, ()))), ()):
            yield f".{name}", getattr(value, name, None)


# Assigns have no annotation from which their types could be read. A value that is not JSON is
# stored as an extension of MessagePack with the name of its class. No JSON of a client contains
# such an extension, so that no client can name a class.

_TYPED: Final = 1


def store_types(where: str, value: Any, depth: int = 0) -> Any:
    """Return *value* with JSON in place of objects of other types, and their types.

    Raises:
        Unstorable: an object has no JSON form, or other processes cannot find its class.
    """
    kind = type(value)
    if depth > _MAX_DEPTH or value is None or kind in (str, int, float, bool):
        return to_json(where, value, None)
    if isinstance(value, Mapping):
        stored = {}
        for key, each in value.items():
            if type(key) is not str:
                raise Unstorable(f"{where} has the key {key!r}; in JSON keys are texts")
            stored[key] = store_types(f"{where}.{key}", each, depth + 1)
        return stored
    if kind in (list, tuple):
        return [store_types(f"{where}[{n}]", each, depth + 1) for n, each in enumerate(value)]
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _class(name) is not kind:
        raise Unstorable(
            f"{where} is {kind.__name__}, which other processes cannot find: define the class in "
            f"a module, outside of functions"
        )
    try:
        codec = _codec(kind)
    except TypeError as error:
        raise Unstorable(f"{where}: {error}; {_REMEDY}") from None
    return Ext(_TYPED, _encode((name, to_json(where, value, codec))))


def restore_types(value: Any) -> Any:
    """Return the value that `store_types` has converted.

    Raises:
        ConfigurationError: this process does not know the class of an object, or another one.
    """
    if isinstance(value, dict):
        return {key: restore_types(each) for key, each in value.items()} if value else {}
    if isinstance(value, list):
        return [restore_types(each) for each in value]
    if not isinstance(value, Ext):
        return value
    name, plain = _decode(value.data)
    if (kind := _class(name)) is None:
        raise ConfigurationError(f"there is no class {name} here: a worker must import its module")
    try:
        return _codec(kind).decode(plain)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} has changed: {error}") from error


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for each in qualname.split("."):
        found = getattr(found, each, None)
    return found


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Any]).decode
