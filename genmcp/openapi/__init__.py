"""The operations of an HTTP API as tools, from its OpenAPI document.

    client = httpx.AsyncClient(base_url="https://api.example.com", auth=("ada", "secret"))
    suite = Suite("orders", tools=openapi_tools("openapi.json", client=client))

Nothing that the document refers to is fetched, and requests go only to the `base_url` of the
client: the servers that the document names are not used.
"""

from genmcp.openapi.reader import OperationTools as OperationTools
from genmcp.openapi.reader import openapi_tools as openapi_tools
from genmcp.openapi.tool import OperationTool as OperationTool
