"""Validation faults in the input of a client: the place, the expected and the actual value.

A fault is one sentence that a model can act on, and the same information in parts for programs.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

# Characters of a step of a pointer, of a pointer, and of the words of a fault: names and texts of a
# client may have megabytes, and each of its faults would repeat them.
_MAX_STEP: Final = 100
_MAX_POINTER: Final = 400
_MAX_WORDS: Final = 8_000


class Fault(str):
    """One fault, as a sentence that begins with its JSON Pointer.

    Attributes:
        pointer: the JSON Pointer of the faulty value; empty for the root. Of a step of more than
            100 characters, and of a pointer of more than 400, the middle is replaced by `…`.
        words: the sentence without the pointer.
        expected, actual: the two halves of a mismatch, None for a fault of another kind.
    """

    pointer: str
    words: str
    expected: str | None
    actual: str | None

    def __new__(cls, path: Sequence[str | int], words: str) -> "Fault":
        """Return the fault at *path*; *words* may be a `Mismatch`."""
        steps = (_shortened(str(step), _MAX_STEP) for step in path)
        pointer = _shortened("".join("/" + _escaped(step) for step in steps), _MAX_POINTER)
        shown = _shortened(str(words), _MAX_WORDS)
        fault = super().__new__(cls, f"{pointer or '(root)'}: {shown}")
        fault.pointer = pointer
        fault.words = shown
        fault.expected = getattr(words, "expected", None)
        fault.actual = getattr(words, "actual", None)
        return fault


class Mismatch(str):
    """The text "expected ..., got ...", with both halves as attributes."""

    expected: str
    actual: str

    def __new__(cls, expected: str, actual: str, *, separator: str = ",") -> "Mismatch":
        """Return the words; *separator* is `;` where *expected* contains commas."""
        words = super().__new__(cls, f"expected {expected}{separator} got {actual}")
        words.expected = expected
        words.actual = actual
        return words


def error_data(faults: Sequence[str], **named: str) -> dict[str, Any]:
    """Return the `data` of an error: the members *named* (`name=` or `uri=`), and the faults.

    docs/how-to/errors.md documents the shape.
    """
    return {**named, "faults": [_in_parts(fault) for fault in faults]}


def _in_parts(fault: str) -> Mapping[str, str]:
    if not isinstance(fault, Fault):
        return {"pointer": "", "message": fault}
    parts = {"pointer": fault.pointer, "message": fault.words}
    if fault.expected is not None and fault.actual is not None:
        parts |= {"expected": fault.expected, "actual": fault.actual}
    return parts


_PLACE: Final = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`(?:, got `([^`]+)`)?(.*)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")

_NAMES: Final = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
# JSON Schema accepts 1.0 as an integer, msgspec does not.
_ACTUAL: Final = _NAMES | {"float": "a number with a decimal point"}


def decoding_fault(message: str) -> Fault:
    """Return the fault that *message*, of a msgspec.ValidationError, describes."""
    path: list[str | int] = []
    if place := _PLACE.search(message):
        message = message[: place.start()]
        for step in _STEP.finditer(place[1]):
            if step[0] == "[...]":
                break  # a value in a mapping: the message does not contain its key
            path.append(step[1] if step[1] is not None else int(step[2]))
    if missing := _MISSING.fullmatch(message):
        return Fault(path, f'missing required property "{missing[1]}"')
    if wanted := _EXPECTED.fullmatch(message):
        *types, last = [_NAMES.get(name, name) for name in wanted[1].split(" | ")]
        expected = f"{', '.join(types)} or {last}" if types else last
        if wanted[2] is not None:
            return Fault(path, Mismatch(expected, _ACTUAL.get(wanted[2], wanted[2]) + wanted[3]))
        return Fault(path, f"expected {expected}{wanted[3]}")
    return Fault(path, message)


def _shortened(text: str, length: int) -> str:
    """Return *text*, or its beginning and its end, of *length* characters in all."""
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
