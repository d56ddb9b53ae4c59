"""Bounds of settings, which their annotations declare."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import pytest

from genmcp import JobOptions
from genmcp._options import Count, Fraction, Pause, Seconds, check_bounds
from genmcp.errors import ConfigurationError


class Kiln(msgspec.Struct, kw_only=True):
    """Settings with every kind of bound."""

    firings: Count = 1
    soak: Seconds = 1.0
    cooling: Pause = 0.0
    fill: Fraction = 0.5
    glaze: Seconds | str = "celadon"
    vent: Seconds | None = None
    shelves: Mapping[str, Count] | tuple[str, ...] = ()
    cone: Annotated[int, msgspec.Meta(gt=-23, lt=14)] = 6
    label: str = ""

    def __post_init__(self) -> None:
        check_bounds(self)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"firings": 10**30, "soak": 1, "cooling": float("inf"), "fill": 0, "vent": 2.5},
        {"glaze": 30.0, "shelves": {"top": 1}},
        {"label": 3},  # without a bound, nothing is checked
    ],
)
def test_settings_within_their_bounds_are_accepted(settings: Mapping[str, Any]) -> None:
    """An integer is a number, too; None and other members of a union have no bound."""
    Kiln(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"firings": 0}, "Kiln.firings must be an integer of at least 1, not 0"),
        ({"firings": 1.5}, "Kiln.firings must be an integer of at least 1, not 1.5"),
        ({"firings": True}, "Kiln.firings must be an integer of at least 1, not True"),
        ({"soak": 0}, "Kiln.soak must be a number of more than 0, not 0"),
        ({"soak": None}, "Kiln.soak must be a number of more than 0, not None"),
        ({"soak": float("nan")}, "Kiln.soak must be a number of more than 0, not nan"),
        ({"cooling": -1}, "Kiln.cooling must be a number of at least 0, not -1"),
        ({"fill": 1.01}, "Kiln.fill must be a number of at least 0 and at most 1, not 1.01"),
        ({"glaze": -1.0}, "Kiln.glaze must be a number of more than 0, not -1.0"),
        ({"vent": "wide"}, "Kiln.vent must be a number of more than 0, not 'wide'"),
        ({"shelves": {"top": 0}}, "Kiln.shelves['top'] must be an integer of at least 1, not 0"),
        ({"cone": 14}, "Kiln.cone must be an integer of more than -23 and less than 14, not 14"),
    ],
)
def test_setting_out_of_bounds_is_named(settings: Mapping[str, Any], message: str) -> None:
    """With its bounds and the value, when the settings are made."""
    with pytest.raises(ConfigurationError) as caught:
        Kiln(**settings)

    assert str(caught.value) == message


# The settings of each class whose number was decided; design/decisions.md says which and why.
SETTINGS: Mapping[type[msgspec.Struct], int] = {JobOptions: 12}


@pytest.mark.parametrize("options", SETTINGS)
def test_number_of_settings_is_a_decision(options: type[msgspec.Struct]) -> None:
    """A bound that users have no reason to change is a constant."""
    assert len(options.__struct_fields__) == SETTINGS[options]
