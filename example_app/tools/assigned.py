"""What the application gives to every tool in `channel.assigns`, by its type."""

from example_app.workshop import Workshop
from genmcp import Channel

__all__ = ["user_of", "workshop_of"]


def workshop_of(channel: Channel) -> Workshop:
    """Return the workshop: the same for every call (`Mux(assigns=...)`)."""
    workshop: Workshop = channel.assigns["workshop"]
    return workshop


def user_of(channel: Channel) -> str:
    """Return who asks: copied from the HTTP request's state (`Endpoint(copy_assigns=...)`)."""
    user: str = channel.assigns["user"]
    return user
