"""The cost of a schema: how many subschemas it applies to one value."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

from genmcp._schema.document import REFERENCES, Document

#: The cost that a schema may have.
MAX_COST: Final = 10_000

# The subschemas of these keywords apply to the same value as the schema.
_TO_SAME: Final = frozenset(
    {
        *("not", "if", "then", "else", "allOf", "anyOf", "oneOf"),
        *("dependentSchemas", "dependencies", *REFERENCES),
    }
)
# Of the subschemas of these, one at most applies to each part of the value, and in addition to it
# all subschemas of the other keywords.
_TO_ONE_PART: Final = frozenset(
    {"properties", "additionalProperties", "prefixItems", "items", "additionalItems"}
)
_UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_MARKING: Final = _UNEVALUATED | {"contains"}

# The cost of expensive keywords, as a multiple of the cost of a subschema, which is some 20 ns: a
# division, and the comparison with a constant that is no text.
_MULTIPLE_OF: Final = 40
_CONSTANT: Final = 4

# A node of the graph of subschemas, with edges to all dynamic anchors. Its name is no JSON Pointer.
_ANY_DYNAMIC: Final = "*"
_DYNAMIC_ANCHORS: Final = frozenset({"$dynamicAnchor", "$recursiveAnchor"})
_DYNAMIC_REFERENCES: Final = frozenset({"$dynamicRef", "$recursiveRef"})


_Graph = Mapping[str, list[tuple[str, str]]]
"""By pointer: the subschemas that one applies, each as a keyword and its pointer."""


class _Work(NamedTuple):
    """How many subschemas are applied to decide, and how many to find out what is evaluated."""

    to_decide: int = 1
    to_mark: int = 1


# A reference that closes a loop: jsonschema-rs looks up whether its target was applied before.
_LOOP: Final = _Work(20, 20)


def cost_of(document: Document) -> int:
    """Return how many subschemas *document* applies to a value and to its parts, one a level.

    Expensive keywords count several times. jsonschema-rs applies a subschema once for each way that
    leads to it. Two ways at each of 30 levels, as in `allOf: [$ref, $ref]`, or with `properties`
    and `patternProperties`, would take minutes. A reference that closes a loop is the exception:
    its target is applied once to each value, and is therefore added to the whole.

    Raises:
        ConfigurationError: the schema applies itself, or too many others, to one value.
    """
    graph = _graph_of(document)
    _refuse_loops(document, graph)
    work: dict[str, _Work] = {}
    entered: set[str] = set()
    repeated: set[str] = set()
    pending = [""]
    while pending:
        pointer = pending[-1]
        if pointer in entered:
            pending.pop()
            if pointer not in work:
                work[pointer] = _work_of(document.schemas.get(pointer), graph[pointer], work)
                _check(document, pointer, work[pointer].to_decide)
        else:
            entered.add(pointer)
            for _, below in graph[pointer]:
                if below not in entered:
                    pending.append(below)
                elif below not in work:
                    repeated.add(below)
    cost = sum(work[each].to_decide for each in {"", *repeated})
    _check(document, "", cost)
    return cost


def _check(document: Document, pointer: str, cost: int) -> None:
    if cost > MAX_COST:
        raise document.refuse(pointer, f"applies more than {MAX_COST} subschemas to one value")


def _graph_of(document: Document) -> _Graph:
    graph: dict[str, list[tuple[str, str]]] = {_ANY_DYNAMIC: []}
    for pointer, schema in document.schemas.items():
        graph[pointer] = document.applied(pointer)
        if schema.__class__ is dict and not _DYNAMIC_ANCHORS.isdisjoint(schema):
            graph[_ANY_DYNAMIC].append(("properties", pointer))
    for edges in graph.values():
        # The anchor that it resolves to depends on the dynamic scope. One node leads to all of
        # them, since an edge from every reference to every anchor would be quadratic.
        if any(keyword in _DYNAMIC_REFERENCES for keyword, _ in edges):
            edges.append(("$dynamicRef", _ANY_DYNAMIC))
    return graph


def _refuse_loops(document: Document, graph: _Graph) -> None:
    same = {
        pointer: [each for keyword, each in edges if keyword in _TO_SAME]
        for pointer, edges in graph.items()
    }
    try:
        TopologicalSorter(same).prepare()
    except CycleError as error:
        loop = " -> ".join(pointer or "(root)" for pointer in error.args[1])
        raise document.refuse(
            error.args[1][0], f"applies itself to the same value: {loop}"
        ) from None


def _work_of(schema: Any, edges: Iterable[tuple[str, str]], work: Mapping[str, _Work]) -> _Work:
    """Return the work of *schema* from that of the subschemas that it applies."""
    found = [(keyword, work.get(pointer, _LOOP)) for keyword, pointer in edges]
    same = [each for keyword, each in found if keyword in _TO_SAME]
    one = [each.to_decide for keyword, each in found if keyword in _TO_ONE_PART]
    others = [
        (keyword, each.to_decide)
        for keyword, each in found
        if keyword not in _TO_SAME and keyword not in _TO_ONE_PART
    ]
    to_decide = _own_cost(schema) + sum(each.to_decide for each in same)
    to_decide += max(one, default=0) + sum(each for _, each in others)
    # What is evaluated is found by applying the subschemas once more.
    to_mark = 1 + sum(each.to_decide + each.to_mark for each in same)
    to_mark += sum(each for keyword, each in others if keyword in _MARKING)
    if schema.__class__ is dict and not _UNEVALUATED.isdisjoint(schema):
        to_decide += to_mark
    return _Work(to_decide, to_mark)


def _own_cost(schema: Any) -> int:
    if schema.__class__ is not dict:
        return 1
    constants = [schema["const"]] if "const" in schema else []
    if isinstance(schema.get("enum"), list):
        constants += schema["enum"]
    needs = [schema.get("dependentRequired"), schema.get("dependencies")]
    return (
        1
        + _MULTIPLE_OF * ("multipleOf" in schema)
        + _CONSTANT * sum(each.__class__ is not str for each in constants)
        + sum(len(each) for each in needs if isinstance(each, dict))
    )
