"""A stdio server that takes DELAY seconds to start, given as its argument.

It has one tool, and imports only the standard library: the benchmark measures the hub that waits
for it, and two cores cannot start fifty interpreters with a framework in eight seconds.
"""

import json
import sys
import time
from typing import Any

RESULTS: dict[str, dict[str, Any]] = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]},
}
KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def main() -> None:
    """Wait, and respond to requests until the input ends."""
    time.sleep(float(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": RESULTS[asked["method"]] | KEPT}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
