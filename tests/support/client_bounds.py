"""`bounds` lowers bounds of the client, which are constants, so that a test reaches them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from genmcp.client.options import ClientOptions

_TRANSPORTS = "genmcp.client.transports"
_CONSTANTS: Final[Mapping[str, Sequence[str]]] = {
    "connect_timeout": [
        f"{_TRANSPORTS}.http_pool.CONNECT_TIMEOUT",
        f"{_TRANSPORTS}.httpx_adapter.CONNECT_TIMEOUT",
    ],
    "exit_timeout": [f"{_TRANSPORTS}.stdio._EXIT_TIMEOUT"],
    "first_delay": [f"{_TRANSPORTS}.sse._FIRST_DELAY"],
    "initialized_timeout": ["genmcp.client.connection._INITIALIZED_TIMEOUT"],
    "input_concurrency": ["genmcp.client.handler_runner._CONCURRENCY"],
    "kill_timeout": [f"{_TRANSPORTS}.stdio._KILL_TIMEOUT"],
    "keepalive_timeout": [f"{_TRANSPORTS}.http_pool.KEEPALIVE_TIMEOUT"],
    "max_connections": [
        f"{_TRANSPORTS}.http_pool.MAX_CONNECTIONS",
        f"{_TRANSPORTS}.httpx_adapter.MAX_CONNECTIONS",
    ],
    "max_header_bytes": [f"{_TRANSPORTS}.http_pool.MAX_HEADER_BYTES"],
    "max_list_bytes": ["genmcp.client.client._MAX_LIST_BYTES"],
    "max_list_items": ["genmcp.client.client._MAX_LIST_ITEMS"],
    "max_message": [f"{_TRANSPORTS}.{name}.MAX_MESSAGE" for name in ("http", "sse", "stdio")],
    "max_notifications": ["genmcp.client.handler_runner._MAX_NOTIFICATIONS"],
    "max_pages": ["genmcp.client.client._MAX_PAGES"],
    "max_poll_failures": ["genmcp.client.tasks._MAX_POLL_FAILURES"],
    "max_queued_inputs": ["genmcp.client.handler_runner._MAX_QUEUED"],
    "probe_timeout": ["genmcp.client.connection._PROBE_TIMEOUT"],
    "resume_attempts": [
        f"{_TRANSPORTS}.http.RESUME_ATTEMPTS",
        f"{_TRANSPORTS}.sse.RESUME_ATTEMPTS",
    ],
    "schemas": ["genmcp.client.handler_runner.FOREIGN_LIMITS"],
    "term_timeout": [f"{_TRANSPORTS}.stdio._TERM_TIMEOUT"],
    "write_timeout": [f"{_TRANSPORTS}.stdio._WRITE_TIMEOUT"],
}


@contextmanager
def bounds(**values: Any) -> Iterator[None]:
    """Set bounds to other *values* while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            for place in _CONSTANTS[name]:
                patch.setattr(place, value)
        yield


def split(given: Mapping[str, Any]) -> tuple[ClientOptions, dict[str, Any]]:
    """Return the members of *given* that are options of a client, and the others: bounds."""
    names = ClientOptions.__struct_fields__
    options = ClientOptions(**{name: given[name] for name in given if name in names})
    return options, {name: given[name] for name in given if name not in names}
