"""Attributes of spans and metrics, by the semantic conventions for MCP.

open-telemetry/semantic-conventions-genai, "Semantic conventions for Model Context Protocol", which
are in development.
"""

from typing import Final

from genmcp._mux.telemetry import JobAttempt, RequestFailure
from genmcp.errors import WorkRaised
from genmcp.protocol.revisions.chain import REVISIONS

HTTP: Final = {"network.transport": "tcp", "network.protocol.name": "http"}

# Faults of the client are no errors of the server (`rpc.response.status_code`).
_CLIENT_FAULTS: Final = frozenset({-32700, -32600, -32601, -32602, -32002})

_METHODS: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)


def method_name(method: str | None) -> str:
    """Return *method*, or `_OTHER` if MCP lacks it: clients could send any number of names.

    So could they through a hub, which passes on the methods of extensions that it does not know.
    """
    return method if method is not None and method in _METHODS else "_OTHER"


def request_attributes(method: str, version: str, name: str | None) -> dict[str, str]:
    """Return the attributes of a request; *name* is that of its tool or prompt, if it has one."""
    attributes = {"mcp.method.name": method, "mcp.protocol.version": version}
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    if name is not None:
        is_prompt = method == "prompts/get"
        attributes["gen_ai.prompt.name" if is_prompt else "gen_ai.tool.name"] = name
    return attributes


def failure_attributes(failure: RequestFailure) -> dict[str, str]:
    """Return the attributes of a failed request. A fault of the client has no `error.type`."""
    if failure.code is None:
        return {"error.type": failure.kind}
    attributes = {"rpc.response.status_code": str(failure.code)}
    if failure.code not in _CLIENT_FAULTS:
        attributes["error.type"] = str(failure.code)
    return attributes


def job_attributes(job: JobAttempt) -> dict[str, str]:
    """Return the attributes of an attempt at a job."""
    return {"genmcp.job.name": job.name, "genmcp.queue": job.queue, "gen_ai.tool.name": job.tool}


def job_error_type(error: BaseException) -> str:
    """Return the value of `error.type` for a job that has ended with *error*."""
    return error.type_name if isinstance(error, WorkRaised) else type(error).__name__
