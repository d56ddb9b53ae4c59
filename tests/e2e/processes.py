"""Third-party processes, for the tests in this folder."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

__all__ = ["kill", "serving"]


@asynccontextmanager
async def serving(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """Run *command*, and wait until it listens on *port*. At the end it is killed.

    Raises:
        RuntimeError: the process ended before.
    """
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        while True:
            with suppress(ConnectionRefusedError):
                # From another address, so that the connection does not take *port* itself.
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=("127.0.0.9", 0)
                )
                writer.close()
                break
            if process.returncode is not None:
                raise RuntimeError(f"{command} ended with status {process.returncode}")
            await asyncio.sleep(0.02)
        yield process
    finally:
        await kill(process)


async def kill(process: Process) -> None:
    """Kill *process* if it still runs, and wait for its end."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
