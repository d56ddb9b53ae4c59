"""A process that sends one keyed call to a server of its own, and kills itself at a chosen write.

Usage: python -m tests.support.killed_call FILE KIND NUMBER before|after RERUN|fail
"""

import asyncio
import os
import signal
import sys

from genmcp import SQLiteStore
from genmcp.stores.store import Delete, Op, Put
from tests.support.keyed import ASKS, Counts, Stage, asks, begin, keyed, serving, works


class Deadly(SQLiteStore):
    """Kills the process before or after the write with *number* of those to tasks."""

    number: int
    when: str

    async def apply(self, *ops: Op) -> None:
        if any(isinstance(op, Put | Delete) and "/task:" in op.key for op in ops):
            self.number -= 1
        if self.number == 0 and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().apply(*ops)
        if self.number == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(path: str, kind: str, number: str, when: str, on_worker_lost: str) -> None:
    """Send the call, and exit if its last write came before the chosen one."""
    Stage.reset()
    Stage.go.set()
    makes = {"plain": lambda: None, "job": works, "question": asks}[kind]
    store = Deadly(path)
    app = serving(Counts(makes, on_worker_lost=on_worker_lost), store=store, lease=0.3)
    client = await begin(app, capabilities=ASKS)
    store.number, store.when = int(number), when
    await client.send(keyed(client))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
