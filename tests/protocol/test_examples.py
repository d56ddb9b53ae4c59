"""The official examples of the schema of 2026-07-28."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp.protocol.client_features import (
    CreateMessageResult,
    ElicitResult,
    InputRequest,
    ListRootsResult,
)
from genmcp.protocol.methods import METHODS
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.value import Result
from tests.support.definitions import VALUES, method

EXAMPLES: Mapping[str, Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "examples" / "2026-07-28.json").read_text()
)

#: A form's schema is a free object, and errors are no values: these have no type.
NOT_VALUES = ("Schema", "Error")
#: An example without `ttlMs`, which is not valid by its own schema.
FAULTY = "read-resource-result-response"


def examples() -> Iterator[tuple[str, Any, Any]]:
    """Yield the definition of each example, its part that has a type, and the type."""
    for definition, named in EXAMPLES.items():
        for name, example in named.items():
            if definition.endswith(NOT_VALUES) or name == FAULTY:
                continue
            if definition == "InputRequests":
                yield from ((definition, each, InputRequest) for each in example.values())
            elif definition == "InputResponses":
                yield from ((definition, each, answer(each)) for each in example.values())
            elif definition.endswith("ResultResponse"):
                type_ = VALUES[definition.removesuffix("Response")]
                yield definition, example["result"], type_
            elif method(LATEST, definition):
                of = METHODS[example["method"]]
                yield definition, example.get("params", {}), of.params
            else:
                yield definition, example, VALUES[definition]


def answer(example: Mapping[str, Any]) -> type[Any]:
    if "action" in example:
        return ElicitResult
    return CreateMessageResult if "model" in example else ListRootsResult


@pytest.mark.parametrize(("definition", "example", "type_"), [*examples()])
def test_examples_are_read_and_written_again(definition: str, example: Any, type_: Any) -> None:
    """Decoding and encoding an example loses nothing."""
    value = msgspec.json.decode(json.dumps(example), type=type_)

    if example.get("isError") is False:  # absent means false
        example = {key: member for key, member in example.items() if key != "isError"}
    encoded = json.loads(msgspec.json.encode(value))
    if isinstance(value, Result):
        encoded["resultType"] = value.result_type
    assert example == encoded
