"""The client: drives any MCP server, of any revision, over HTTP, stdio or in memory."""
