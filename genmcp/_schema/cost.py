"""The cost of a schema: how many subschemas it applies to one value."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

from genmcp._schema.document import REFERENCES, Document
from genmcp._schema.limits import SchemaLimits

#: The cost that a schema may have.
MAX_COST: Final = 10_000

_ALTERNATIVES: Final = ("anyOf", "oneOf")
# Stands for `anyOf` and `oneOf` where the constant of a property selects one of the subschemas.
_SELECTED: Final = "selected"
# The subschemas of these keywords apply to the same value as the schema.
_TO_SAME: Final = frozenset(
    {
        *("not", "if", "then", "else", "allOf", *_ALTERNATIVES, _SELECTED),
        *("dependentSchemas", "dependencies", *REFERENCES),
    }
)
# Of the subschemas of these, one at most applies to each part of the value.
_TO_ONE_PART: Final = frozenset(
    {"properties", "additionalProperties", "prefixItems", "items", "additionalItems"}
)
_UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
# To find out what is evaluated, the subschemas of these are applied to the parts once more.
_MARKING: Final = _UNEVALUATED | {"contains"}

# The cost of expensive keywords, as a multiple of the cost of a subschema, which is some 20 ns: a
# division, the comparison with a constant other than a text (`metered` has those of numbers), and
# the comparison of an item with others.
_MULTIPLE_OF: Final = 40
_CONSTANT: Final = 4
COMPARED: Final = 100
# A reference that closes a loop: jsonschema-rs looks up whether its target was applied before, but
# not at the innermost two levels of a value. So there is a cost for each, and for each pair.
_LOOP: Final = 5
_LOOPS: Final = 50

# A node of the graph of subschemas, with edges to all dynamic anchors. Its name is no JSON Pointer.
_ANY_DYNAMIC: Final = "*"
_DYNAMIC_ANCHORS: Final = frozenset({"$dynamicAnchor", "$recursiveAnchor"})
_DYNAMIC_REFERENCES: Final = frozenset({"$dynamicRef", "$recursiveRef"})

_Graph = Mapping[str, list[tuple[str, str]]]
"""By pointer: the subschemas that one applies, each as a keyword and its pointer."""


class _Work(NamedTuple):
    """How many subschemas are applied to decide, and how many to find out what is evaluated.

    *loops* is the number of references among them that close a loop.
    """

    to_decide: int = 1
    to_mark: int = 1
    loops: int = 0

    @property
    def cost(self) -> int:
        """The cost, where each value is checked by the targets of all loops."""
        return max(1, self.loops) * self.to_decide + _LOOPS * self.loops * (self.loops - 1)


def cost_of(document: Document, limits: SchemaLimits) -> int:
    """Return how many subschemas *document* applies to a value and to its parts, one a level.

    Expensive keywords count several times. jsonschema-rs applies a subschema once for each way that
    leads to it. Two ways at each of 30 levels, as in `allOf: [$ref, $ref]`, or with `properties`
    and `patternProperties`, would take minutes.

    Raises:
        ConfigurationError: the schema applies itself, or too many others, to one value.
    """
    graph = _graph_of(document, limits.trusted)
    _refuse_loops(document, graph)
    work: dict[str, _Work] = {}
    entered: set[str] = set()
    pending = [""]
    while pending:
        pointer = pending[-1]
        if pointer in entered:
            pending.pop()
            if pointer not in work:
                work[pointer] = _work_of(document.schemas.get(pointer), graph[pointer], work)
                if work[pointer].cost > MAX_COST:
                    raise document.refuse(
                        pointer,
                        f"applies more than {MAX_COST} subschemas to one value; a required "
                        f"property with a constant for each alternative may help",
                    )
        else:
            entered.add(pointer)
            pending += [below for _, below in graph[pointer] if below not in entered]
    return work[""].cost


def _graph_of(document: Document, trusted: bool) -> _Graph:
    graph: dict[str, list[tuple[str, str]]] = {_ANY_DYNAMIC: []}
    for pointer, schema in document.schemas.items():
        edges = document.applied(pointer)
        for keyword in _ALTERNATIVES:
            branches = [each for name, each in edges if name == keyword]
            if branches and _is_selected(document, branches, trusted):
                edges = [(_SELECTED if name == keyword else name, each) for name, each in edges]
        graph[pointer] = edges
        if schema.__class__ is dict and not _DYNAMIC_ANCHORS.isdisjoint(schema):
            graph[_ANY_DYNAMIC].append(("properties", pointer))
    for edges in graph.values():
        # The anchor that it resolves to depends on the dynamic scope. One node leads to all of
        # them, since an edge from every reference to every anchor would be quadratic.
        if any(keyword in _DYNAMIC_REFERENCES for keyword, _ in edges):
            edges.append(("$dynamicRef", _ANY_DYNAMIC))
    return graph


def _is_selected(document: Document, branches: Sequence[str], trusted: bool) -> bool:
    """Return whether *branches* have different constants for a property; there it is looked up."""
    constants: dict[str, set[str]] = defaultdict(set)
    for pointer in branches:
        for schema in document.referenced(pointer).values():
            for name, constant in _constants_of(schema, trusted):
                constants[name].add(constant)
    return any(len(values) == len(branches) for values in constants.values())


def _constants_of(schema: Mapping[str, Any], trusted: bool) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the properties that have one as their only value."""
    properties, required = schema.get("properties"), schema.get("required")
    for name, each in properties.items() if isinstance(properties, dict) else ():
        is_required = isinstance(required, list) and name in required
        if isinstance(each, dict) and (trusted or is_required):
            options = each.get("enum", [each.get("const")])
            if isinstance(options, list) and len(options) == 1 and isinstance(options[0], str):
                yield name, options[0]


def _refuse_loops(document: Document, graph: _Graph) -> None:
    if not document.uses(*REFERENCES):
        return
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


def _work_of(schema: Any, edges: Sequence[tuple[str, str]], work: Mapping[str, _Work]) -> _Work:
    """Return the work of *schema* from that of the subschemas that it applies."""
    # Most schemas have no others below them.
    if not edges and (schema.__class__ is not dict or _UNEVALUATED.isdisjoint(schema)):
        return _Work(_own_cost(schema))
    found = [(keyword, work.get(pointer, _Work(_LOOP, _LOOP, 1))) for keyword, pointer in edges]
    same = [each for keyword, each in found if keyword in _TO_SAME and keyword != _SELECTED]
    same.append(_most(each for keyword, each in found if keyword == _SELECTED))
    parts = [each for keyword, each in found if keyword not in _TO_SAME | _TO_ONE_PART]
    parts.append(_most(each for keyword, each in found if keyword in _TO_ONE_PART))
    to_decide = _own_cost(schema) + sum(each.to_decide for each in (*same, *parts))
    to_mark = 1 + sum(each.to_decide + each.to_mark for each in same)
    to_mark += sum(each.to_decide for keyword, each in found if keyword in _MARKING)
    if schema.__class__ is dict and not _UNEVALUATED.isdisjoint(schema):
        to_decide += to_mark
    return _Work(to_decide, to_mark, sum(each.loops for each in (*same, *parts)))


def _most(works: Iterable[_Work]) -> _Work:
    return _Work(*map(max, zip(_Work(0, 0, 0), *works, strict=True)))


def _own_cost(schema: Any) -> int:
    if schema.__class__ is not dict:
        return 1
    options = schema["enum"] if isinstance(schema.get("enum"), list) else []
    compared = [each for each in options if each.__class__ in (dict, list)]
    if schema.get("const", "").__class__ is not str:
        compared.append(schema["const"])
    keywords = _MULTIPLE_OF * ("multipleOf" in schema) + COMPARED * ("uniqueItems" in schema)
    needs = [schema.get("dependentRequired"), schema.get("dependencies")]
    named = sum(len(each) for each in needs if isinstance(each, dict))
    return 1 + keywords + _CONSTANT * len(compared) + named
