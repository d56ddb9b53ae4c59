"""A server of the Python SDK over stdio."""

from mcp.server import MCPServer

server = MCPServer("other")


@server.tool()
def shout(text: str) -> str:
    """Returns the text in capitals."""
    return text.upper()


if __name__ == "__main__":
    server.run("stdio")
