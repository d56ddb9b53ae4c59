"""Which values are JSON: what travels in a continuation, or to a job, has to be."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from genmcp.errors import ContractError

__all__ = ["check_json"]

_DEEPEST = 64


def check_json(where: str, value: Any) -> None:
    """Check that *value*, which is called *where*, is JSON as `json.loads` would return it.

    Raises:
        ContractError: it is not; the message names the first place, such as `job.items[2].at`.
    """
    _check(where, value, _DEEPEST)


def _check(where: str, value: Any, deeper: int) -> None:
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return
    if kind is float:
        if not isfinite(value):
            raise ContractError(f"{where} is {value!r}, which JSON does not have")
    elif not deeper:
        raise ContractError(f"{where} nests deeper than {_DEEPEST} levels")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if type(key) is not str:
                raise ContractError(f"{where} has the key {key!r}; in JSON keys are texts")
            _check(f"{where}.{key}", each, deeper - 1)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check(f"{where}[{index}]", each, deeper - 1)
    else:
        raise ContractError(
            f"{where} is {kind.__name__}, which is not JSON: it has to be text, a number, a "
            f"boolean, None, or a list or dict of these"
        )
