"""Fixtures of the tests with others' servers and clients."""

import pytest

from tests.e2e.npm import OIDC_PROVIDER, SDK, npm_package


@pytest.fixture(scope="session")
def npm_packages() -> None:
    """Install the packages of the tests of logins, before the time of a test begins."""
    for package in (OIDC_PROVIDER, SDK):
        npm_package(*package)
