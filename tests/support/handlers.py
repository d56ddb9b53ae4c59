"""Handlers of clients that several tests use."""

from collections.abc import Mapping
from typing import Any

from genmcp import Accepted, ClientHandler


class AcceptingHandler(ClientHandler):
    """Accepts every form with its defaults."""

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Accepted:
        return Accepted({})
