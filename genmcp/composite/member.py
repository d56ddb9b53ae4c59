"""The members of a composite server, and the routes to their components."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Policy, Request, call_of
from genmcp.core.waiting import Continue
from genmcp.errors import McpError
from genmcp.protocol.value import Result
from genmcp.server import Route, Server


class Member(Server):
    """A server behind a `CompositeServer`: a mux of this process, or a client's connection.

    Owned by its registry or hub. The composite server passes to every method the names that the
    member itself uses, not qualified names. A request that `handle` gets has the route that `find`
    returned.

    assigns: the static assigns of its calls.
    """

    assigns: Mapping[str, Any] = {}

    def at(self, channel: Channel) -> "Member":
        """Return this member, for a request of *channel*, which gets the assigns."""
        channel.context.give(self.assigns)
        return self

    async def relay(self, params: Mapping[str, Any], channel: Channel) -> Mapping[str, Any]:
        """Return the result of the request of *channel*, a method of an extension, as JSON values.

        Raises:
            MethodNotFound: the member does not have the method.
            McpError: the error of the member.
        """
        from genmcp.composite.relay import answer_of  # here: most members have no extensions

        return await answer_of(self.at(channel), params, channel)


class UnlistedRoute(Route, frozen=True, kw_only=True):
    """The route to a resource that a member does not list.

    claimed: whether the URI matches one of the member's templates. Otherwise only the request shows
    whether the resource exists.
    """

    claimed: bool = False


M = TypeVar("M", bound=Member)


class Alternative(NamedTuple, Generic[M]):
    """A member that has, or may have, a component; *key* is the member's name for it."""

    member: M
    key: str
    route: Route

    @property
    def is_certain(self) -> bool:
        """Whether the member lists the component, or knows that it exists."""
        route = self.route
        # A route with a visibility rule is pending too, but its component exists.
        unsure = route.shared or (route.pending and route.visible is None)
        return not unsure and not isinstance(route, UnlistedRoute)

    @property
    def is_claimed(self) -> bool:
        """Whether the URI matches one of the member's templates."""
        return isinstance(self.route, UnlistedRoute) and self.route.claimed

    def request(self, request: Request) -> Request:
        """Return *request* with the names and the route of the member."""
        params: Any = request.params
        if request.method != "resources/read":
            params = replace(params, name=self.key)
        route = self.route
        if hasattr(route, "handle"):
            route = _RestoringRoute(route=route, composite=request)
        return replace(request, route=route, params=params)


class CompositeRoute(Route, frozen=True, kw_only=True):
    """The route to the first of *alternatives* that has the tool, prompt or resource.

    There are several alternatives only for resources and for pending routes. Otherwise the
    qualified name belongs to a single member.
    """

    alternatives: Sequence[Alternative[Member]]

    @classmethod
    def of(cls, alternatives: Sequence[Alternative[Member]]) -> "CompositeRoute":
        """Return the route to *alternatives*, with the settings of the first member's route.

        If there are several, the scopes of each are checked before it is tried.
        """
        route = alternatives[0].route
        return cls(
            header_rules=route.header_rules,
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            scopes=route.scopes if len(alternatives) == 1 else (),
            policy=_without_auto_hold(route.policy),
            eager=route.eager,
            pending=route.pending,
            alternatives=alternatives,
        )

    async def resolve(self, channel: Channel) -> Route:
        """Return the route to the first alternative that exists.

        Raises:
            McpError: none of them exists.
        """
        failure: McpError | None = None
        for each in self.alternatives:
            received = channel.request
            try:
                channel.context.give(each.member.assigns)
                route = await each.route.resolve(channel)
            except McpError as error:
                failure = failure or error
                continue
            called = each._replace(route=route)
            params: Any = channel.request.params
            if channel.request is not received:  # a call that names another tool of the member
                called = called._replace(key=params.name)
                name = received.key.removesuffix(each.key) + params.name
                channel.request = call_of(channel.request, name, params.arguments)
            return self.of([called])
        assert failure is not None
        raise failure

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Resume the call by the route of its member.

        A member's server calls this method, since it takes the route from `channel.request`.
        """
        return await self.alternatives[0].route.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Cancel the call by the route of its member."""
        await self.alternatives[0].route.cancelled(channel)


class _RestoringRoute(Route, frozen=True, kw_only=True):
    """A member's route that calls the component's hook with the request of the composite server.

    A component sets `channel.request` to the request that it handles. The task, the sealed state
    and the policy are derived from `channel.request`. They have to match the request that the
    client sends again, which has the qualified name and the route of the composite server.
    """

    route: Any
    composite: Request

    def handle(self, request: Request, channel: Channel) -> Coroutine[Any, Any, Result | Continue]:
        """Run the component's hook. Arguments that a middleware has replaced are kept."""
        params: Any = request.params
        if request.method != "resources/read":
            params = replace(params, name=self.composite.key)
        restored = replace(request, route=self.composite.route, params=params)
        step: Coroutine[Any, Any, Result | Continue] = self.route.handle(restored, channel)
        return step


def _without_auto_hold(policy: Policy) -> Policy:
    # A call that is held automatically returns the name of the tool that fetches its result. In the
    # composite server that tool has another, qualified name.
    return replace(policy, max_hold=None) if policy.auto_hold else policy
