"""Every token storage passes the contract."""

import pytest

from genmcp.client.auth.tokens import MemoryTokens, TokenStorage
from genmcp.testing.contracts.tokens import TokensContract


class TestMemoryTokens(TokensContract):
    @pytest.fixture
    def tokens(self) -> TokenStorage:
        return MemoryTokens()

    @pytest.fixture
    def impatient(self) -> TokenStorage:
        return MemoryTokens(lock_timeout=0.1)
