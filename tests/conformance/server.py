"""The server under test in the official suite: `python -m tests.conformance.server --port N`."""

import argparse
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from genmcp import Endpoint, PromptTemplate, Suite, tool
from genmcp.extensions import Skills
from tests.conformance.prompts import PROMPTS
from tests.conformance.questions import QUESTIONS
from tests.conformance.resources import RESOURCES
from tests.conformance.tasks import TASKS
from tests.conformance.tools import TOOLS

suite = Suite(
    name="genmcp-conformance",
    version="1.0.0",
    tools=[*TOOLS, *QUESTIONS, *TASKS],
    resources=RESOURCES,
    prompts=PROMPTS,
    extensions=[Skills(Path(__file__).with_name("skills"))],
    title="The fixture of the conformance suite",
)


@tool(name="test_trigger_tool_change")
async def trigger_tool_change() -> str:
    """Adds a tool, and removes it."""

    @tool(name="test_passing_tool")
    async def passing() -> str:
        """Is there for a moment."""
        return "Here."

    suite.add(passing)
    suite.remove(passing)
    return "Changed."


@tool(name="test_trigger_prompt_change")
async def trigger_prompt_change() -> str:
    """Adds a prompt, and removes it."""
    passing = PromptTemplate(name="test_passing_prompt", messages="Here.")
    suite.add(passing)
    suite.remove(passing)
    return "Changed."


suite.add(trigger_tool_change, trigger_prompt_change)
app = Starlette(routes=[Endpoint(suite).route("/mcp")])


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
