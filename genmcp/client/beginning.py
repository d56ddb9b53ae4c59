"""How a connection is begun, and begun again where a server ends on what it does not know."""

from typing import Final

from genmcp.client.errors import ClientError, ProcessExited
from genmcp.client.inlet import Inlet
from genmcp.client.readiness import Readiness
from genmcp.client.transports.base import Transport
from genmcp.core.client.dispatch import ClientDispatch, ConnectionState

__all__ = ["begin"]

_TRIED: Final = "both ways to begin were tried, ClientOptions(revision=...) says which is right"


async def begin(
    transport: Transport, inlet: Inlet, machine: ClientDispatch, readiness: Readiness
) -> None:
    """Open *transport*, and return when *machine* knows what the server speaks.

    That is done twice if the server ends before (`RestartTransport`). 2026-07-28, stdio, "Backward
    Compatibility": it may know nothing but `initialize`.

    Raises:
        ClientError: there is no server, or none that can be talked to.
    """
    try:
        await _begin_once(transport, inlet, readiness)
    except ClientError:
        if machine.state is not ConnectionState.NEW:
            raise
    else:
        return
    readiness.open()
    try:
        await _begin_once(transport, inlet, readiness)
    except ProcessExited as error:
        raise error.advised(_TRIED) from error


async def _begin_once(transport: Transport, inlet: Inlet, readiness: Readiness) -> None:
    await transport.open(inlet)
    if readiness.is_open:
        inlet.begin()
    await readiness.wait()
