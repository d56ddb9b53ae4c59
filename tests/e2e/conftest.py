"""Fixtures of tests with third-party servers and clients."""

import pytest

from tests.support.npm import npm_package
from tests.support.peers import OIDC_PROVIDER, SDK


@pytest.fixture(scope="session")
def npm_packages() -> None:
    """Install the packages for tests of logins, so that it does not count for a test's time."""
    for package in (OIDC_PROVIDER, SDK):
        npm_package(*package)
