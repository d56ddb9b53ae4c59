"""Test suites that every store and every engine passes, for pytest. docs/stores.md."""

import pytest

# Modules of tests outside of a test folder: their assertions show values only if pytest is told.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("accounts", "bench", "deliveries", "engine", "logs"))
)
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("engine_processes", "records", "shared", "store"))
)
