"""A stdio server whose texts contain escape sequences of terminals."""

import json
import sys
from typing import Any

ESCAPE = "\x1b[31m\x07"
FORGED = f"{ESCAPE}\nWARNING: forged"


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": ESCAPE, "version": "1"},
                }
            case "tools/list":
                # It sends an unrelated response, which is a warning in the log.
                say({"id": ESCAPE, "error": {"code": 1, "message": FORGED}})
                members = {ESCAPE: {"type": "string"}}
                schema = {"type": "object", "properties": members, "required": [ESCAPE]}
                result = {"tools": [{"name": "t", "description": ESCAPE, "inputSchema": schema}]}
            case _:
                if "id" in message:
                    say({"id": message["id"], "error": {"code": -32601, "message": ESCAPE}})
                continue
        say({"id": message["id"], "result": result})


def say(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201 - it speaks by lines


if __name__ == "__main__":
    main()
