"""How a server serves extensions: it declares them, has their methods, and extends its results."""

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError
from genmcp.extensions.extension import Extension, checked_extensions
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import PaginatedRequestParams
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Middleware, Server

R = TypeVar("R", bound=Result)


class ServedExtensions:
    """The extensions of a server. Owned by the server.

    Attributes:
        all: the extensions, in their order.
        methods: the requests that they add, by their names.
        extending: those that add to results.

    Raises:
        ConfigurationError: two of *given* clash, or one is not an extension.
    """

    def __init__(self, owner: str, given: Sequence[object]) -> None:
        self.all = checked_extensions(owner, given)
        self.methods: Mapping[str, Method] = {}
        self._owners: dict[str, Extension] = {}
        for each in self.all:
            served = [m for m in each.methods if m.sender != "server" and not m.is_notification]
            self.methods = {**self.methods, **{method.name: method for method in served}}
            self._owners.update({method.name: each for method in served})
        self.extending = [each for each in self.all if type(each).extend is not Extension.extend]

    def declared(self, capabilities: ServerCapabilities) -> ServerCapabilities:
        """Return *capabilities* with these extensions."""
        own = {each.name: each.settings for each in self.all}
        return replace(capabilities, extensions={**(capabilities.extensions or {}), **own})

    async def handle(self, request: Request, channel: Channel) -> Result:
        """Return the result of *request*, whose method is one of `methods`.

        Raises:
            ContractError: the extension returned something else than a result.
        """
        owner = self._owners[request.method]
        result = await owner.handle(request, channel)
        if not isinstance(result, Result):
            raise ContractError(f"{owner!r}: handle must return a Result, not {result!r}")
        return result

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return a page of *method*, a method of an extension whose params have a cursor."""
        request, params = channel.request, channel.request.params
        assert isinstance(params, PaginatedRequestParams)
        request = replace(request, params=replace(params, cursor=cursor))
        page: Any = await self.handle(request, channel)
        return page  # type: ignore[no-any-return]

    async def extended(
        self, step: Coroutine[Any, Any, Result | Continue], channel: Channel
    ) -> Result | Continue:
        """Return the outcome of *step*; a result with what the extensions add to it."""
        found = await step
        return self.extend(found, channel) if isinstance(found, Result) else found

    def extend(self, result: R, channel: Channel) -> R:
        """Return *result* with what the extensions add to it.

        Raises:
            ContractError: an extension returned a result of another type.
        """
        kind: type[R] = type(result)
        for each in self.extending:
            extended = each.extend(channel.request, result, channel)
            if not isinstance(extended, kind):
                raise ContractError(f"{each!r}: extend must return a {kind.__name__}")
            result = extended
        return result


class Extended(Middleware):
    """A server with extensions that it does not have itself, such as a hub's, or one of your own.

        Extended(server, Stock())

    A `Suite` takes its extensions as `extensions=`.

    Args:
        inner: the server.
        extensions: the extensions, without components, which only a suite can have.

    Raises:
        ConfigurationError: two extensions clash, or one has components.
    """

    def __init__(self, inner: Server, *extensions: Extension) -> None:
        super().__init__(inner)
        self._extensions = served = ServedExtensions(type(self).__name__, extensions)
        for each in served.all:
            if each.tools or each.resources or each.prompts:
                raise ConfigurationError(f"{each!r} has components: give it to a Suite")

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the inner server, and the extensions."""
        return self._extensions.declared(self.inner.capabilities)

    @property
    def methods(self) -> Collection[str]:
        """The methods of the inner server, and those of the extensions."""
        return {*self.inner.methods, *self._extensions.methods}

    def added(self, method: str) -> Method:
        """Return the types of a method of an extension."""
        return self._extensions.methods.get(method) or self.inner.added(method)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Handle a method of an extension, or forward; extensions add to the result."""
        if request.method in self._extensions.methods:
            return await self._extensions.handle(request, channel)
        return await self._extensions.extended(self.inner.handle(request, channel), channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Forward to the inner server; extensions add to the result."""
        step = self.inner.resume(continuation, outcome, channel)
        return await self._extensions.extended(step, channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return a page of a list of an extension, or forward; extensions add to the page."""
        extensions = self._extensions
        if method in extensions.methods:
            return await extensions.listed(method, cursor, channel)
        return extensions.extend(await self.inner.listed(method, cursor, channel), channel)
