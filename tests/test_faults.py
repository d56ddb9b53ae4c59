"""Validation faults: sentences for a model, and the same in parts for a program."""

import pytest

from genmcp.faults import Fault, Mismatch, decoding_fault, error_data


def test_fault_has_a_pointer_and_two_halves() -> None:
    """RFC 6901: `~` and `/` within a step of the JSON pointer are escaped."""
    fault = Fault(["a/b", 0, "c~"], Mismatch("a number", "null", separator=";"))

    assert fault == "/a~1b/0/c~0: expected a number; got null"
    assert error_data([fault], uri="a://b") == {
        "uri": "a://b",
        "faults": [
            {
                "pointer": "/a~1b/0/c~0",
                "message": "expected a number; got null",
                "expected": "a number",
                "actual": "null",
            }
        ],
    }


def test_fault_of_another_kind_has_only_a_message() -> None:
    """E.g. the line with the number of omitted faults: it has no place in the value."""
    faults = error_data([Fault([], "unexpected"), "... and 5 more"])["faults"]

    assert faults == [
        {"pointer": "", "message": "unexpected"},
        {"pointer": "", "message": "... and 5 more"},
    ]


@pytest.mark.parametrize(
    ("message", "fault", "actual"),
    [
        (
            "Expected `str`, got `int` - at `$.name`",
            "/name: expected a string, got an integer",
            "an integer",
        ),
        (
            "Expected `int | str | null`, got `float` - at `$.a[1].b`",
            "/a/1/b: expected an integer, a string or null, got a number with a decimal point",
            "a number with a decimal point",
        ),
        ("Expected `array` of length 2", "(root): expected an array of length 2", None),
        ("Expected `str` - at `$.a[...].b`", "/a: expected a string", None),
        ("Object missing required field `uri`", '(root): missing required property "uri"', None),
        ("Invalid enum value 'x' - at `$.level`", "/level: Invalid enum value 'x'", None),
    ],
)
def test_decoding_fault_is_worded_like_all_faults(
    message: str, fault: str, actual: str | None
) -> None:
    """Messages of msgspec name Python types, and put the place last: they are rewritten."""
    found = decoding_fault(message)

    assert fault == found
    assert actual == found.actual


def test_long_names_do_not_lengthen_a_fault() -> None:
    """A client chooses the names in its objects: twenty faults would repeat one of megabytes."""
    long = Fault(["items", "n" * 1_000_000 + "/end", 3], "missing")
    deep = Fault(["n" * 90] * 64, "x" * 1_000_000)

    assert long.pointer.startswith("/items/nnn")
    assert long.pointer.endswith("nnn~1end/3")
    assert len(long.pointer) < 150
    assert len(deep.pointer) < 450
    assert len(str(error_data([deep]))) < 10_000
