"""A server and its authorization server as tables, and a runner, for the tests beside this file."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec.structs import replace

from genmcp.core.auth.flow import RejectedAttempt, authorize
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import (
    Ask,
    Call,
    Fetch,
    Fetched,
    FlowEvent,
    FlowFailed,
    FlowOptions,
    Listen,
    Load,
    Locked,
    Save,
    Steps,
)

T = TypeVar("T")
Page = Fetched | Callable[[Fetch], Fetched]

URL = "https://mcp.example.com/mcp"
PRM = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
PRM_ROOT = "https://mcp.example.com/.well-known/oauth-protected-resource"
ISSUER = "https://login.example.com"
METADATA = "https://login.example.com/.well-known/oauth-authorization-server"
OPENID = "https://login.example.com/.well-known/openid-configuration"
TOKEN = f"{ISSUER}/token"
REDIRECT = "http://127.0.0.1:4567/callback"

ACCESS, REFRESH, SECRET, CODE = "access-token", "refresh-token", "client-secret", "the-code"
SECRETS = (ACCESS, REFRESH, SECRET, CODE, "random-")
STEP_UP = 'Bearer error="insufficient_scope", scope="c"'


def page(members: object, status: int = 200) -> Fetched:
    """A response with JSON."""
    return Fetched(status, [("Content-Type", "application/json")], json.dumps(members).encode())


def raw(body: bytes | str, status: int = 200, **headers: str) -> Fetched:
    """A response with any body."""
    found = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Fetched(status, found, body.encode() if isinstance(body, str) else body)


def form_of(fetch: Fetch) -> dict[str, str]:
    """The parameters of a token request."""
    return dict(parse_qsl((fetch.body or b"").decode(), strict_parsing=True))


def challenge(text: str = "Bearer", status: int = 401, **more: Any) -> RejectedAttempt:
    """A response of the server with a challenge."""
    return RejectedAttempt(status=status, headers=[("WWW-Authenticate", text)], **more)


class Prover:
    """Makes the keys key-1, key-2 and so on, and proofs that one can read."""

    def __init__(self) -> None:
        self.nonces: list[str | None] = []
        self.keys = 0

    def new_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    def thumbprint(self, key: str) -> str:
        return f"thumbprint of {key}"

    def prove(self, request: Fetch, key: str) -> Fetch:
        nonce = self.nonces[-1] if self.nonces else "no nonce"
        proof = f"{key} {request.method} {request.url} {nonce}"
        return replace(request, headers=[*request.headers, ("DPoP", proof)])

    def challenged(self, request: Fetch, response: Fetched) -> bool:
        self.nonces.append(dict(response.headers).get("DPoP-Nonce"))
        return b"use_dpop_nonce" in response.body


class World:
    """Performs the steps of flows. Its tables are those of servers that do all as they should."""

    def __init__(self, **options: Any) -> None:
        self.time = 1000.0
        self.numbers = 0
        self.events: list[FlowEvent] = []
        self.options = FlowOptions(
            url=options.pop("url", URL),
            now=lambda: self.time,
            random=self.random,
            on_event=self.events.append,
            **options,
        )
        self.record: Record | None = None
        self.prm: dict[str, Any] = {"resource": URL, "authorization_servers": [ISSUER]}
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "registration_endpoint": f"{ISSUER}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        }
        self.client: dict[str, Any] = {"client_id": "client-1"}
        self.token: dict[str, Any] = {
            "access_token": ACCESS,
            "token_type": "Bearer",
            "expires_in": 3600,
            "refresh_token": REFRESH,
        }
        self.pages: dict[str, Page] = {
            PRM: lambda fetch: page(self.prm),
            METADATA: lambda fetch: page(self.metadata),
            f"{ISSUER}/register": lambda fetch: page(self.client, 201),
            f"{ISSUER}/token": lambda fetch: page(self.token),
        }
        self.answer: Mapping[str, str | None] | Exception | str = {}
        self.redirect_uri = REDIRECT
        self.fetches: list[Fetch] = []
        self.asks: list[Ask] = []
        self.listened: list[str | None] = []
        self.locked = 0
        self.before: Callable[[object], None] = lambda step: None

    def random(self) -> str:
        """A text that differs each time."""
        self.numbers += 1
        return f"random-{self.numbers}-".ljust(43, "x")

    def run(self, steps: Steps[T]) -> T:
        """Perform the steps of a flow, and return its outcome."""
        try:
            step = next(steps)
            while True:
                self.before(step)
                try:
                    outcome = self.perform(step)
                except (TimeoutError, FlowFailed) as error:  # of the listener, of a locked step
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as done:
            outcome_of_flow: T = done.value
            return outcome_of_flow

    def perform(self, step: object) -> object:
        """Return the outcome of a step."""
        match step:
            case Fetch():
                self.fetches.append(step)
                found = self.pages.get(step.url, raw("Not Found", 404))
                return found if isinstance(found, Fetched) else found(step)
            case Listen():
                self.listened.append(step.preferred)
                return self.redirect_uri + step.segment
            case Ask():
                self.asks.append(step)
                return self.redirected(step)
            case Load():
                return self.record
            case Save():
                assert self.locked == 1
                self.record = step.record
            case Call():
                assert self.locked == 0  # it may take any time, and locked steps are not cancelled
                return step.function()
            case Locked():
                assert self.locked == 0
                self.locked = 1
                try:
                    return self.run(step.steps)
                finally:
                    self.locked = 0
        return None

    def redirected(self, step: Ask) -> str:
        """The URL that the browser ends at: `answer` changes or removes its parameters."""
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, str):
            return self.answer
        params = {"code": CODE, "state": self.asked["state"], **self.answer}
        query = {name: value for name, value in params.items() if value is not None}
        return f"{step.redirect_uri}?{urlencode(query)}"

    @property
    def asked(self) -> dict[str, str]:
        """The parameters of the last authorization request."""
        return dict(parse_qsl(urlsplit(self.asks[-1].url).query, strict_parsing=True))

    def to(self, path: str) -> list[Fetch]:
        """The requests to URLs that end in *path*."""
        return [fetch for fetch in self.fetches if fetch.url.endswith(path)]

    @property
    def urls(self) -> list[str]:
        """The URLs that were fetched, in order."""
        return [fetch.url for fetch in self.fetches]

    def change(self, **members: Any) -> None:
        """Store the record with other members, as another process does."""
        assert self.record is not None
        self.record = replace(self.record, **members)


def logged_in(**options: object) -> World:
    """A world with a client that has logged in for the scopes a and b."""
    world = World(**options)
    world.run(authorize(world.options, challenge('Bearer scope="a b"')))
    forget(world)
    return world


def forget(world: World) -> None:
    """Empty the lists of steps and events."""
    for steps in (world.fetches, world.asks, world.listened, world.events):
        steps.clear()


def record_of(world: World) -> Record:
    """The stored record."""
    assert world.record is not None
    return world.record
