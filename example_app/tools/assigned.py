"""Typed access to `channel.assigns`, for all tools."""

from example_app.workshop import Workshop
from genmcp import Channel

__all__ = ["user_of", "workshop_of"]


def workshop_of(channel: Channel) -> Workshop:
    """Return the workshop, one for all calls (`Mux(assigns=...)`)."""
    workshop: Workshop = channel.assigns["workshop"]
    return workshop


def user_of(channel: Channel) -> str:
    """Return the user, copied from `request.state` (`Endpoint(copy_assigns=...)`)."""
    user: str = channel.assigns["user"]
    return user
