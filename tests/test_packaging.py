"""The files of an installation, and the files shipped with the package."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from genmcp.version import __version__

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("name", "vulnerable", "fixed"),
    [
        ("h11", "0.14.0", "0.16.0"),  # CVE-2025-43859
        ("cryptography", "44.0.0", "44.0.1"),  # CVE-2024-12797
        ("filelock", "3.20.2", "3.20.3"),  # CVE-2026-22701
    ],
)
def test_floors_exclude_vulnerable_releases(name: str, vulnerable: str, fixed: str) -> None:
    """Installing genmcp upgrades an environment with vulnerable dependencies."""
    required = {each.name: each for each in map(Requirement, requires("genmcp") or ())}

    assert vulnerable not in required[name].specifier
    assert fixed in required[name].specifier


LOCKED = {
    each.name: str(each.specifier)
    for line in (ROOT / "example_app" / "requirements.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for each in [Requirement(line)]
}


def test_image_is_built_from_locked_packages() -> None:
    """The lock file has one release of each package of `.[fast]`, within its bounds."""
    wanted = [Requirement(each) for each in requires("genmcp") or ()]

    for each in wanted:
        if each.marker is None or each.marker.evaluate({"extra": "fast"}):
            assert each.specifier.contains(LOCKED[each.name].removeprefix("=="))
    assert all(pin.startswith("==") for pin in LOCKED.values())


def test_dockerfile_pins_its_base_and_needs_no_root() -> None:
    """The base has an exact tag; the image has a user of its own and only locked packages."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()

    (base,) = [line for line in lines if line.startswith("FROM")]
    assert re.fullmatch(r"FROM python:3\.\d+\.\d+-slim-\w+", base)
    assert "USER example" in lines
    assert all("--no-deps" in line for line in lines if "pip install" in line)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_listed_python_is_tested() -> None:
    """The classifiers are the versions of the public CI, and no older one is admitted."""
    kind = "Programming Language :: Python :: 3."
    listed = [each[len(kind) - 2 :] for each in PROJECT["project"]["classifiers"] if kind in each]
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
    (matrix,) = [
        job["strategy"]["matrix"]
        for job in yaml.safe_load(workflow)["jobs"].values()
        if "strategy" in job
    ]

    assert listed == matrix["python"]
    assert PROJECT["project"]["requires-python"] == f">={listed[0]}"


def test_changelog_has_the_version() -> None:
    """And a place for what comes after it."""
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)

    assert headings[:2] == ["Unreleased", __version__]


def test_addresses_of_the_project_are_those_of_its_readme() -> None:
    """The links of the package index lead to the repository, at the tag of the version."""
    repository = PROJECT["project"]["urls"]["Repository"]
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]

    assert all(url.startswith(repository) for url in PROJECT["project"]["urls"].values())
    assert [each["replacement"] for each in hook["substitutions"]] == [
        rf"\1{repository}/raw/v$HFPR_VERSION/",
        rf"\1{repository}/blob/v$HFPR_VERSION/",
    ]


def test_wheel_contains_no_test_code() -> None:
    """It is the folder genmcp alone, which needs no tool of the tests."""
    code = {path: path.read_text("utf-8") for path in (ROOT / "genmcp").rglob("*.py")}

    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["genmcp"]
    assert [path for path in code if path.name.startswith("test_")] == []
    assert [
        path
        for path, text in code.items()
        if re.search(r"^\s*(?:import|from) (?:pytest|hypothesis|tests)\b|def test_", text, re.M)
    ] == []
