"""What resources and repositories say of themselves, checked when they are registered."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from genmcp.channel import Channel
from genmcp.continuing import check_goes_on, goes_on
from genmcp.core.outcome import Outcome
from genmcp.errors import ConfigurationError
from genmcp.hook import Hook
from genmcp.metadata import annotations_of, check_metadata, take_docstring
from genmcp.protocol.content import Annotations
from genmcp.protocol.implementation import Icon
from genmcp.protocol.result import CacheScope

__all__ = ["Described", "Description"]


class Description(TypedDict, total=False):
    """The attributes of `Described`, as keyword arguments."""

    name: str
    title: str
    description: str
    mime_type: str
    annotations: Annotations | Mapping[str, Any]
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    cache_ttl: float
    cache_scope: CacheScope


class Described:
    """The base of `Resource` and `ResourceRepo`: the metadata of their entries in listings.

    name, title, description, icons, meta: what its listing says of it; the class's docstring is
        its description unless it gives one.
    mime_type: the type of all its contents that do not say theirs.
    annotations: Annotations, or a mapping of them (`{"audience": ["user"], "priority": 0.5}`).
    cache_ttl: for how many seconds a client may keep what it read or listed.
    cache_scope: `"public"` if that does not depend on who asks, and may be handed on to anybody;
        2026-07-28, server/utilities, "Caching".
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | Mapping[str, Any] | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None
    cache_ttl: float = 0
    cache_scope: CacheScope = "private"

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the docstring for the description, and check that a `read` that waits goes on."""
        super().__init_subclass__(**options)
        take_docstring(cls)
        read = getattr(cls, "read", None)
        check_goes_on(f"{cls.__name__}.read", read, goes_on=goes_on(cls, Described))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        """Go on with a request that waited under *tag*, and return what `read` may return.

        *outcome* is `Done(value)` or `Failed(error)`. It may run in another process than `read`:
        what it needs is in `channel.request.params.uri`, in `channel.request.arguments`, which is
        the key that `read` got, and in `channel.assigns`.

        Raises:
            ResourceNotFound: there is no such resource; None does not say so here.
        """
        raise NotImplementedError

    def visible(self, principal: str | None) -> bool:
        """Whether it is there for *principal*; None is whoever is not authenticated.

        It is asked when it is listed, read or completed, and does not wait.
        """
        return True

    @property
    def continues(self) -> Hook | None:
        """The hook that goes on with a request that waited, None if there is none of its own.

        Raises:
            ConfigurationError: it yields.
        """
        return Hook.of(self, "continue_", Described)

    def describe(self, attributes: Description) -> None:
        """Set *attributes* on this instance.

        Raises:
            ConfigurationError: there is no such attribute.
        """
        for key, value in attributes.items():
            if key not in Description.__annotations__:
                raise ConfigurationError(f"{type(self).__name__} takes no {key}")
            setattr(self, key, value)

    def check(self) -> None:
        """Check what is said here.

        Raises:
            ConfigurationError: the message names the class, the attribute, and what it takes.
        """
        owner = type(self).__name__
        said = {key: getattr(self, key) for key in Description.__annotations__}
        check_metadata(owner, said, annotations=Annotations)
        given = self.given_annotations
        if given is not None and given.priority is not None and not 0 <= given.priority <= 1:
            raise ConfigurationError(
                f"{owner}.annotations: priority must be 0 to 1, not {given.priority!r}"
            )

    @property
    def given_annotations(self) -> Annotations | None:
        """The annotations as a struct.

        Raises:
            ConfigurationError: one is of another type, or there is no such annotation.
        """
        return annotations_of(type(self).__name__, self.annotations, Annotations)
