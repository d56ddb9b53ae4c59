"""The application of `benchmarks.listeners`: `python -m benchmarks.listened --port N`."""

import argparse

import uvicorn

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool

COUNT = 100_000  # more than are measured: the listeners of one address have no share here


@tool
async def change(channel: Channel) -> str:
    """Announces a change of the list of tools."""
    channel.changes.tools_list_changed()
    return "changed"


mux = Mux(
    Suite(name="listened", version="1", tools=[change]),
    limits=Limits(
        max_streams=COUNT,
        max_streams_per_client=COUNT,
        max_subscribed_bytes=COUNT * 1024,
        max_subscribed_bytes_per_client=COUNT * 1024,
        anonymous_share=1,
    ),
)


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    uvicorn.run(Endpoint(mux), host="127.0.0.1", port=port, log_level="warning", backlog=4096)


if __name__ == "__main__":
    main()
