"""What an installation brings, and what is shipped beside the package."""

from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("name", "vulnerable", "fixed"),
    [
        ("h11", "0.14.0", "0.16.0"),  # CVE-2025-43859
        ("cryptography", "44.0.0", "44.0.1"),  # CVE-2024-12797
    ],
)
def test_floors_exclude_vulnerable_releases(name: str, vulnerable: str, fixed: str) -> None:
    """An old environment is upgraded when genmcp is installed into it."""
    required = {each.name: each for each in map(Requirement, requires("genmcp") or ())}

    assert vulnerable not in required[name].specifier
    assert fixed in required[name].specifier
