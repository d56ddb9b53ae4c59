"""An issuer of access tokens for tests: `Issuer`."""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from genmcp.errors import ConfigurationError
from genmcp.extras import missing_extra

# Not by genmcp/auth/jose.py: a mistake there would agree with itself.
try:
    from joserfc import jwk, jwt
except ImportError as error:
    raise missing_extra("Issuer", "auth", error) from error

__all__ = ["Issuer", "IssuerFaults", "IssuerKeys", "ServedIssuer"]

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_STOP_TIMEOUT = 10.0  # seconds for the server to stop
_WELL_KNOWN = "/.well-known"

PrivateKey = jwk.ECKey | jwk.RSAKey | jwk.OKPKey


def _new_key(algorithm: str) -> PrivateKey:
    """Return a new private key for *algorithm*, with its thumbprint as `kid`."""
    key: PrivateKey
    if algorithm in _CURVES:
        key = jwk.ECKey.generate_key(_CURVES[algorithm])
    elif algorithm == "Ed25519":
        key = jwk.OKPKey.generate_key("Ed25519")
    else:
        key = jwk.RSAKey.generate_key(2048)
    members = {**key.as_dict(private=True), "kid": key.thumbprint(), "use": "sig"}
    return type(key).import_key({**members, "alg": algorithm})


class IssuerKeys:
    """The signing keys of an issuer: the newest signs, all that are listed verify."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self._foreign = _new_key(algorithm)
        self._keys = [_new_key(algorithm)]

    def rotate(self, *, withdraw: bool) -> None:
        """Sign with a new key from now on; *withdraw* takes the former keys off the list."""
        self._keys = [_new_key(self.algorithm), *([] if withdraw else self._keys)]

    @property
    def jwks(self) -> dict[str, Any]:
        """The JWK set (RFC 7517, 5) of the public keys."""
        return {"keys": [key.as_dict(private=False) for key in self._keys]}

    def sign(self, claims: Mapping[str, Any], typ: str, *, foreign: bool = False) -> str:
        """Return a JWT; *foreign* signs it with a key that is not listed, under a listed `kid`."""
        header = {"alg": self.algorithm, "typ": typ, "kid": self._keys[0].kid}
        key = self._foreign if foreign else self._keys[0]
        return jwt.encode(header, dict(claims), key, algorithms=[self.algorithm])


@dataclass
class IssuerFaults:
    """Faults that can be switched on while a test runs.

    Attributes:
        failing: the HTTP status in place of a document, by its name: "metadata" or "jwks".
        delay: seconds before a document is sent, by its name.
        foreign_key: sign with a key that is not in the JWK set, under the `kid` of one that is.
    """

    failing: dict[str, int] = field(default_factory=dict)
    delay: dict[str, float] = field(default_factory=dict)
    foreign_key: bool = False


class Issuer:
    """Signs access tokens for tests, and publishes its keys and metadata. It has no login.

    Needs the extra `auth`.

    Args:
        url: the issuer identifier, which may have a path: "https://issuer.test/t1".
            `serve()` replaces scheme, host and port by those it serves on.
        resources: the first one is the audience of tokens without another.
        algorithm: the signature algorithm: ES256, ES384, ES512, RS256, PS256 or Ed25519.
        token_ttl: seconds that access tokens are valid. Default: an hour.
        metadata: members to add to the metadata, or to replace in it; None removes one.
        clock: returns the Unix time; a test can advance its own.

    Attributes:
        app: the ASGI application, which serves `routes`. It can be replaced before `serve`.
        metadata: those members. It can be changed.
        faults: the faults that are switched on.
    """

    app: ASGIApp
    faults: IssuerFaults

    def __init__(
        self,
        url: str = "http://127.0.0.1",
        *,
        resources: Collection[str] = (),
        algorithm: str = "ES256",
        token_ttl: float = 3600,
        metadata: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        if not parts.scheme or not parts.netloc or parts.query or parts.fragment:
            raise ConfigurationError(f"{url!r} is not an issuer: a URL without query and fragment")
        self.url = url
        self.metadata = dict(metadata or {})
        self.faults = IssuerFaults()
        self._audience = tuple(resources)[:1]
        self._keys = IssuerKeys(algorithm)
        self._token_ttl = token_ttl
        self._clock = clock
        self.app = Starlette(routes=self.routes)

    @property
    def jwks(self) -> dict[str, Any]:
        """The JWK set of its public keys."""
        return self._keys.jwks

    @property
    def routes(self) -> list[Route]:
        """Starlette routes to the metadata (RFC 8414, 3; OpenID Connect Discovery) and the keys."""
        path = urlsplit(self.url).path.rstrip("/")
        paths = (
            f"{_WELL_KNOWN}/oauth-authorization-server{path}",
            f"{path}{_WELL_KNOWN}/openid-configuration",
        )
        documents = [Route(each, self._send_metadata) for each in paths]
        return [*documents, Route(f"{path}/jwks", self._send_jwks)]

    def token(
        self,
        subject: str | None = None,
        scopes: Collection[str] = (),
        *,
        audience: str | Sequence[str] | None = None,
        client_id: str = "test-client",
        expires_in: float | None = None,
        **claims: Any,
    ) -> str:
        """Return a new access token (RFC 9068).

        Args:
            subject: the user. Default: none, the token is of the client itself.
            scopes: the granted scopes; a text is split at spaces.
            audience: the resource that the token is for. Default: the first of `resources`.
            client_id: the client that the token is issued to.
            expires_in: seconds until it expires, negative for an expired token.
                Default: `token_ttl`.
            claims: claims to add or replace; None removes one.
        """
        now = int(self._clock())
        given = (audience,) if isinstance(audience, str) else audience
        targets = self._audience if given is None else tuple(given)
        found: dict[str, Any] = {
            "iss": self.url,
            # RFC 9068, 2.2: the client is the subject where no user takes part.
            "sub": subject or client_id,
            "client_id": client_id,
            "iat": now,
            "exp": int(now + (self._token_ttl if expires_in is None else expires_in)),
            "jti": secrets.token_hex(8),
            "aud": targets[0] if len(targets) == 1 else list(targets) or None,
            "scope": (scopes if isinstance(scopes, str) else " ".join(scopes)) or None,
            **claims,
        }
        present = {name: value for name, value in found.items() if value is not None}
        return self._keys.sign(present, "at+jwt", foreign=self.faults.foreign_key)

    def rotate(self, *, withdraw: bool = False) -> None:
        """Sign with a new key from now on; *withdraw* removes the former ones from the JWK set."""
        self._keys.rotate(withdraw=withdraw)

    def serve(self, port: int = 0) -> "ServedIssuer":
        """Serve over HTTP on 127.0.0.1, in a thread, while a block runs.

            async with issuer.serve() as url: ...
            with issuer.serve() as url: ...

        Args:
            port: the port. Default: a free one.

        Returns:
            A context manager that yields the issuer identifier.
        """
        return ServedIssuer(self, port)

    def move(self, base: str) -> None:
        """Replace scheme, host and port of `url`: it is served there from now on."""
        self.url = base + urlsplit(self.url).path

    async def _send_metadata(self, _: Request) -> Response:
        members = {
            "issuer": self.url,
            "jwks_uri": f"{self.url.rstrip('/')}/jwks",
            "response_types_supported": ["code"],
            **self.metadata,
        }
        found = {name: value for name, value in members.items() if value is not None}
        return await self._send("metadata", found)

    async def _send_jwks(self, _: Request) -> Response:
        return await self._send("jwks", self.jwks)

    async def _send(self, name: str, members: Mapping[str, Any]) -> Response:
        await asyncio.sleep(self.faults.delay.get(name, 0))
        if status := self.faults.failing.get(name):
            return JSONResponse({"error": "server_error"}, status)
        return JSONResponse(members, headers={"Cache-Control": "max-age=300"})


class ServedIssuer:
    """An issuer that is served on 127.0.0.1 while the block runs.

    The server has a thread and an event loop of its own, so that a blocking client in the test
    cannot block it.
    """

    def __init__(self, issuer: Issuer, port: int) -> None:
        self._issuer = issuer
        self._port = port
        # The logging of the process stays as it is.
        config = uvicorn.Config(
            issuer.app, log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._listener = socket.socket()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> str:
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", self._port))
        except OSError:
            self._listener.close()
            raise
        # Connections wait in the queue of the listener until the server accepts them.
        self._listener.listen()
        self._thread.start()
        self._issuer.move("http://{}:{}".format(*self._listener.getsockname()))
        return self._issuer.url

    def __exit__(self, *_: object) -> None:
        # A uvicorn that is stopped while it starts leaves its sockets open.
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.01)
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT)
        self._listener.close()

    async def __aenter__(self) -> str:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)
