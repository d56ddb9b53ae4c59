"""The loop that performs the actions of a call, in the order in which its state returns them."""

import asyncio
from collections.abc import Iterator

from genmcp.channel import Channel, Performer
from genmcp.core.call import CallAction, CallEvent


async def report(channel: Channel, event: CallEvent) -> None:
    """Advance the call of *channel* by *event*, and perform the actions that follow."""
    if actions := channel.context.advance(event):
        await perform(channel.context.performer, iter(actions), channel)


async def perform(performer: Performer, actions: Iterator[CallAction], channel: Channel) -> None:
    """Perform *actions* in their order. If one fails, the others follow before it is raised."""
    for action in actions:
        try:
            await performer.perform(action, channel)
        except (Exception, asyncio.CancelledError):
            await perform(performer, actions, channel)
            raise
