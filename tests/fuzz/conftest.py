"""Options for the number of cases, and to repeat a failed one.

pytest tests/fuzz --fuzz-cases 1000000
pytest tests/fuzz --fuzz-seed 1 --fuzz-first 4711 --fuzz-cases 1
pytest tests/fuzz --fuzz-case '{"method": "POST", ...}'
"""

from typing import Any, NamedTuple

import pytest

CASES = 20_000


class Plan(NamedTuple):
    """Cases *first* to *first* + *cases* of *seed*; or only the case in *only*, as text."""

    seed: int
    first: int
    cases: int
    only: str | None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzzing")
    group.addoption("--fuzz-cases", type=int, default=CASES, help="how many cases")
    group.addoption("--fuzz-seed", type=int, default=1, help="the seed of the cases")
    group.addoption("--fuzz-first", type=int, default=0, help="the number of the first case")
    group.addoption("--fuzz-case", default=None, help="one case, as a failure prints it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "plan" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(60 + 0.02 * plan_of(item.config).cases))


def plan_of(config: pytest.Config) -> Plan:
    def option(name: str, default: Any) -> Any:
        # Defaults here as well: in a run of all tests the options are not registered.
        return config.getoption(f"fuzz_{name}", default=default)

    return Plan(option("seed", 1), option("first", 0), option("cases", CASES), option("case", None))


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    """The cases to run."""
    return plan_of(request.config)
