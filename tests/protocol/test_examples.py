"""The examples that come with the schema of 2026-07-28."""

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
from tests.protocol.definitions import VALUES, method

EXAMPLES: Mapping[str, Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "examples" / "2026-07-28.json").read_text()
)

#: Parts of a form's schema, which is a free object; errors, which are not values.
NOT_VALUES = ("Schema", "Error")
#: It has no `ttlMs`, and so does not satisfy the schema it comes with.
FAULTY = "read-resource-result-response"


def examples() -> Iterator[tuple[str, Any, Any]]:
    """Yield each example's definition, the part of it that is a value, and its type."""
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
    """An example is decoded and encoded again without loss."""
    value = msgspec.json.decode(json.dumps(example), type=type_)

    if example.get("isError") is False:  # the meaning of its absence, too
        example = {key: member for key, member in example.items() if key != "isError"}
    said = json.loads(msgspec.json.encode(value))
    if isinstance(value, Result):
        said["resultType"] = value.result_type
    assert example == said
