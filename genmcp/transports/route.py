"""A route of Starlette to an endpoint. Imported when one is asked for: not every host has it."""

import re

from starlette.routing import Route
from starlette.types import ASGIApp

__all__ = ["EndpointRoute"]


class EndpointRoute(Route):
    """A route whose path may end in a slash or not, so that no router redirects to the other."""

    def __init__(self, path: str, endpoint: ASGIApp) -> None:
        super().__init__(path.rstrip("/") or "/", endpoint, name="mcp", include_in_schema=False)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$").rstrip("/") + "/?$")
