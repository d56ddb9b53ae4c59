"""Typed access to `channel.assigns`, for all tools. Explained by the page on the channel."""

from example_app.workshop import Workshop
from genmcp import Channel

__all__ = ["user_of", "workshop_of"]


def workshop_of(channel: Channel) -> Workshop:
    """Return the workshop, one for all calls (`Mux(assigns=...)`)."""
    workshop: Workshop = channel.assigns["workshop"]
    return workshop


def user_of(channel: Channel) -> str:
    """Return the user: that of the access token, if there is one (`Endpoint(auth=...)`).

    Otherwise the one copied from `request.state` (`Endpoint(copy_assigns=...)`).
    """
    if channel.access is not None and channel.access.subject:
        return channel.access.subject
    user: str = channel.assigns["user"]
    return user
