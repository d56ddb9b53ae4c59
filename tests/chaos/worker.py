import asyncio, sys
from tests.chaos.app import mux
async def main():
    await mux.long.jobs.start()
    await asyncio.Event().wait()
asyncio.run(main())
