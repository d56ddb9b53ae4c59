"""The fixture server of the official suite: `python -m tests.conformance.server --port N`."""

import argparse

import uvicorn
from starlette.applications import Starlette

from genmcp import About, Endpoint, Suite
from tests.conformance.prompts import PROMPTS
from tests.conformance.resources import RESOURCES
from tests.conformance.tools import TOOLS

suite = Suite(
    name="genmcp-conformance",
    version="1.0.0",
    tools=TOOLS,
    resources=RESOURCES,
    prompts=PROMPTS,
    about=About(title="The fixture of the conformance suite"),
)
app = Starlette(routes=[Endpoint(suite).route("/mcp")])


def main() -> None:
    """Serve on loopback until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
