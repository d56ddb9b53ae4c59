"""A stdio server of 2025-11-25 with unusual behaviour.

It rejects a log level, continues while it asks, and does not end with its input. Its argument is
the path of a FIFO, which it opens once the client has received all messages.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ABOUT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}, "completions": {}},
    "serverInfo": {"name": "stubborn", "version": "1"},
}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(call: dict[str, Any]) -> None:
    form = {"message": "Who?", "mode": "form", "requestedSchema": SCHEMA}
    say(id="question", method="elicitation/create", params=form)
    token = call["params"]["_meta"]["progressToken"]
    step = {"progressToken": token, "progress": 1, "total": 2, "message": "working"}
    say(method="notifications/progress", params=step)
    say(method="notifications/message", params={"level": "info", "data": "a log"})
    say(id="heard", method="ping")


def main() -> None:
    asked = None
    for line in sys.stdin:
        message = json.loads(line)
        match message:
            case {"method": "initialize"}:
                say(id=message["id"], result=ABOUT)
            case {"method": "tools/list"}:
                tool = {"name": "ask", "inputSchema": {"type": "object"}}
                say(id=message["id"], result={"tools": [tool]})
            case {"method": "completion/complete"}:
                words = [json.dumps(message["params"]["ref"])]
                say(id=message["id"], result={"completion": {"values": words}})
            case {"method": "tools/call"}:
                asked = message["id"]
                ask(message)
            case {"id": "heard"}:
                Path(sys.argv[1]).write_text("heard")
            case {"id": "question"}:
                name = message["result"]["content"]["name"]
                say(id=asked, result={"content": [{"type": "text", "text": f"Hello {name}"}]})
            case {"id": _, "method": _}:
                error = {"code": -32601, "message": "Method not found"}
                say(id=message["id"], error=error)
    signal.pause()


if __name__ == "__main__":
    main()
