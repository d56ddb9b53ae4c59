"""Test suites for pytest that every store and token storage passes: docs/how-to/add-a-store.md."""

import pytest

# pytest shows the values of failed assertions in these modules only if they are registered.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("accounts", "bench", "deliveries", "logs"))
)
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("records", "shared", "store", "tokens"))
)
