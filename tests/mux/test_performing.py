"""The loop that performs the actions of a call."""

from typing import Any

import pytest

from genmcp._mux.performing import report
from genmcp.core.call import TRANSITIONS, CallAction, CallEvent, CallPhase, Returned
from tests.support.channels import Recording, channel_of


@pytest.mark.parametrize("pair", TRANSITIONS, ids=lambda pair: f"{pair[0].name}-{pair[1].__name__}")
async def test_actions_are_performed_in_their_order(
    pair: tuple[CallPhase, type[CallEvent]],
) -> None:
    """The order of the table is the order in time: each ends before the next one begins."""
    performer = Recording()
    channel = channel_of(performer=performer, phase=pair[0])
    data: dict[str, Any] = dict.fromkeys(pair[1].__struct_fields__)

    await report(channel, pair[1](**data))

    assert performer.ended == [*TRANSITIONS[pair].actions]


async def test_action_that_fails_does_not_stop_the_others() -> None:
    """A response that cannot be sent leaves no job behind."""
    performer = Recording(CallAction.RESPOND)
    channel = channel_of(performer=performer, phase=CallPhase.LEFT)

    with pytest.raises(RuntimeError, match="RESPOND"):
        await report(channel, Returned(None))

    begun = TRANSITIONS[CallPhase.LEFT, Returned].actions
    assert performer.begun == [*begun]
