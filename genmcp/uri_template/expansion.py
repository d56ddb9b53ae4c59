"""From variables to a URI: RFC 6570, section 3."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.errors import ContractError
from genmcp.uri_template.grammar import RESERVED, Expression, Operator, Part, Variable, encoded

__all__ = ["expand"]


def expand(parts: Sequence[Part], values: Mapping[str, Any]) -> str:
    """Return the URI that *parts* stand for with *values*.

    Raises:
        ContractError: a value is no text, number, list or mapping of these.
    """
    return "".join(part if isinstance(part, str) else _expand(part, values) for part in parts)


def _expand(expression: Expression, values: Mapping[str, Any]) -> str:
    operator = expression.operator
    pieces = [
        piece
        for variable in expression.variables
        for piece in _pieces(variable, operator, values.get(variable.name))
    ]
    return operator.first + operator.separator.join(pieces) if pieces else ""


def _pieces(variable: Variable, operator: Operator, value: Any) -> Sequence[str]:
    """Return what stands between separators for *value*; nothing if it is undefined."""
    if value is None:
        return []
    safe = RESERVED if operator.reserved else ""
    if isinstance(value, list | tuple | Mapping):
        if variable.length is not None:
            raise ContractError(f"{variable.name}: only a text has a prefix, not {value!r}")
        if isinstance(value, Mapping):
            return _of_pairs(variable, operator, value, safe)
        texts = [encoded(_text(variable, each), safe) for each in value if each is not None]
        if not variable.exploded:
            texts = [",".join(texts)] if texts else []
    else:
        texts = [encoded(_text(variable, value)[: variable.length], safe)]
    if operator.named:
        return [_named(variable.name, operator, text) for text in texts]
    return texts


def _of_pairs(
    variable: Variable, operator: Operator, value: Mapping[str, Any], safe: str
) -> Sequence[str]:
    pairs = [
        (encoded(_text(variable, key), safe), encoded(_text(variable, each), safe))
        for key, each in value.items()
        if each is not None
    ]
    if variable.exploded and operator.named:
        return [_named(key, operator, text) for key, text in pairs]
    if variable.exploded:
        return [f"{key}={text}" for key, text in pairs]
    flat = ",".join(text for pair in pairs for text in pair)
    if operator.named and pairs:
        return [_named(variable.name, operator, flat)]
    return [flat] if pairs else []


def _named(name: str, operator: Operator, text: str) -> str:
    return f"{name}={text}" if text else name + operator.if_empty


def _text(variable: Variable, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ContractError(f"{variable.name}: {value!r} does not stand in a URI; give a text")
