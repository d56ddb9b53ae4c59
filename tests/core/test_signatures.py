"""The types of core: each parameter and result names its type, as does each field."""

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parent.parent.parent / "genmcp" / "core"


def erased(tree: ast.Module) -> Iterator[str]:
    """Yield the parameters, results and fields whose whole type is `Any`, or a union with it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            each += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
            for parameter in each:
                if is_any(parameter.annotation):
                    yield f"{node.lineno}: parameter {parameter.arg} of {node.name}"
            if is_any(node.returns):
                yield f"{node.lineno}: result of {node.name}"
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and is_any(field.annotation):
                    yield f"{field.lineno}: {ast.unparse(field.target)} of {node.name}"


def is_any(annotation: ast.expr | None) -> bool:
    match annotation:
        case ast.Constant(value=str(text)):
            return is_any(ast.parse(text, mode="eval").body)
        case ast.Name(id="Any"):
            return True
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_any(left) or is_any(right)
    return False


def test_core_names_its_types() -> None:
    """`Any` only stands within another type, such as a mapping of a user's values."""
    found = [
        f"{path.name}:{fault}"
        for path in sorted(CORE.glob("*.py"))
        if not path.name.startswith("client_")  # the machines of the client
        for fault in erased(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert found == []


def test_erased_types_are_found() -> None:
    """The check sees parameters, results, fields, texts and unions, and not arguments of types."""
    planted = """
class Kept:
    value: "Any | None"
    fine: dict[str, Any]

def act(given: Any, *more: Any, fine: list[Any], **named: str) -> int | Any:
    return given
"""

    assert [fault.partition(": ")[2] for fault in erased(ast.parse(planted))] == [
        "value of Kept",
        "parameter given of act",
        "parameter more of act",
        "result of act",
    ]


def test_frozen_values_are_not_changed() -> None:
    """A request is shared by the transport, the hooks and the telemetry: each sees the same one."""
    found = [
        path.name
        for path in sorted(CORE.parent.rglob("*.py"))
        if "force_setattr" in path.read_text(encoding="utf-8")
    ]

    assert found == []
