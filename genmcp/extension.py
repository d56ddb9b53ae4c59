"""Extensions: what a server offers to one principal and not to another."""

from collections.abc import Mapping
from typing import Any

__all__ = ["Extension"]


class Extension:
    """Tools, resources and prompts for whoever asks. Subclass it, and write what it yields.

        class OfficeTools(Extension):
            def tools(self, principal: str | None, assigns: Mapping[str, Any]) -> Iterable[object]:
                if principal in assigns["staff"]:
                    yield self.close_books

    *principal* is who the request was authenticated as, None if nobody; *assigns* are the static
    ones, those of the mount. There is nothing else to go by: 2026-07-28, server/tools, has no
    lists that vary by connection.

    What it yields is what a `Suite` takes. It is asked for each list, and for each call of what
    the suite and the extensions before it do not have; a call stops at the first that has the
    name, so that a generator is not run to its end. What is yielded again is not made again:
    give instances and functions that are there, and not new ones.

    Each may be a `def`, which does not wait, or an `async def` that returns a list.
    """

    def tools(self, principal: str | None, assigns: Mapping[str, Any]) -> Any:
        """Return the tools for *principal*."""
        return ()

    def resources(self, principal: str | None, assigns: Mapping[str, Any]) -> Any:
        """Return the resources, and repositories of them, for *principal*."""
        return ()

    def prompts(self, principal: str | None, assigns: Mapping[str, Any]) -> Any:
        """Return the prompts, and repositories of them, for *principal*."""
        return ()
