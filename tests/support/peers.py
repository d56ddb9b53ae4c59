"""The exact versions of the servers, clients and tools of others that the tests install.

The official conformance suite has its version in scripts/conformance. Packages that do not conflict
with ours are development dependencies in pyproject.toml.
"""

# npm: a package, and its version.
SERVERS = {
    "server-everything": "2026.8.31",
    "server-filesystem": "2026.8.31",
    "server-memory": "2026.8.31",
}
SDK = ("@modelcontextprotocol/sdk", "1.32.2")
APPS_HOST = ("@modelcontextprotocol/ext-apps", "2.0.4")
SDK_2_CLIENT = ("@modelcontextprotocol/client", "2.4.0")
SDK_2_SERVER = ("@modelcontextprotocol/server", "2.4.0")
OIDC_PROVIDER = ("oidc-provider", "9.13.3")
GATEWAY = ("supergateway", "4.0.0")
GITHUB_OPENAPI = ("@octokit/openapi", "23.0.2")
FIGMA_OPENAPI = ("@figma/rest-api-spec", "0.43.0")
BIOME = ("@biomejs/biome", "2.6.8")
TYPESCRIPT = ("typescript", "7.0.2")
# Draws the diagrams of the documentation.
MERMAID = ("mermaid", "11.6.0")

# PyPI, each in an environment of its own.
MCP_1 = ("mcp==1.30.0",)
FASTMCP = ("fastmcp==4.2.3", "fastmcp-slim==4.2.3")
# Dependencies of FastMCP's tasks. FastMCP itself is a dependency of the tests.
FASTMCP_TASKS = (
    "fastmcp-tasks==4.1.2",
    "pydocket==0.27.0",
    "burner-redis==0.1.7",
    "cloudpickle==3.1.2",
    "cronsim==2.8",
    "prometheus-client==0.26.0",
    "python-json-logger==4.2.0",
    "redis==8.1.0",
    "shellingham==1.5.4",
    "typer==0.29.2",
)
