"""The error for an extra, such as `genmcp[redis]`, that is not installed."""

from genmcp.errors import ConfigurationError


def missing_extra(user: str, extra: str, error: ImportError) -> ConfigurationError:
    """Return the error for *user*, which needs the modules of *extra*; *error* names the module."""
    return ConfigurationError(f'{user} needs an extra: pip install "genmcp[{extra}]" ({error})')
