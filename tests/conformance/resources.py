"""The resources that the official suite expects."""

from typing import Any

from genmcp import Channel, Resource
from genmcp.resources import ResourceRepo
from tests.conformance.tools import png

__all__ = ["RESOURCES"]


class Data(ResourceRepo):
    """Data by its id."""

    name = "data"
    template = "test://template/{id}/data"
    mime_type = "application/json"

    async def read(self, key: dict[str, str], channel: Channel) -> Any:
        return {"id": key["id"], "templateTest": True, "data": f"Data for ID: {key['id']}"}


RESOURCES = [
    Resource(
        "test://static-text",
        "This is the content of the static text resource.",
        name="static-text",
        description="A text.",
        mime_type="text/plain",
    ),
    Resource(
        "test://static-binary",
        png(),
        name="static-binary",
        description="A picture.",
        mime_type="image/png",
    ),
    Resource(
        "test://watched-resource",
        "This resource can be watched.",
        name="watched-resource",
        description="A text that may change.",
        mime_type="text/plain",
    ),
    Data,
]
