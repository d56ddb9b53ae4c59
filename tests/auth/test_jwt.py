"""Signed access tokens, verified with the keys that an issuer publishes."""

import json
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from genmcp import Endpoint, Suite
from genmcp.auth import Bearer, InvalidToken, Jwt, jose
from genmcp.auth.verdicts import Clock
from genmcp.errors import ConfigurationError
from tests.support.clock import Clock as ManualClock
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, called, whoami

START = 1_800_000_000.0


@asynccontextmanager
async def published(
    path: str = "", **options: Any
) -> AsyncIterator[tuple[OAuthServer, Jwt, ManualClock]]:
    """Serve an issuer over HTTP; yield it, a verifier of its tokens, and the clock of both."""
    clock = ManualClock(START)
    issuer = OAuthServer(f"http://127.0.0.1{path}", resources=[RESOURCE], clock=clock)
    async with issuer.serve():
        verifier = Jwt(**options).bind(RESOURCE, [issuer.url], Clock(clock, clock))
        yield issuer, verifier, clock


async def test_signed_tokens_are_the_default() -> None:
    """A `Bearer` with resource and issuers alone: real HTTP on both sides."""
    issuer = OAuthServer(resources=[RESOURCE])
    async with issuer.serve():
        bearer = Bearer(RESOURCE, issuers=[issuer.url])
        endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            good = await called(client, url, issuer.token("ada"))
            other = await called(client, url, issuer.token("ada", audience="https://other.test"))

    assert f"{issuer.url} sub ada" in good.text
    assert other.status_code == 401
    assert 'error="invalid_token"' in other.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["", "/tenant/1"])
async def test_keys_are_found_through_the_metadata(path: str) -> None:
    """RFC 8414: the well-known part goes between host and path."""
    async with published(path) as (issuer, verifier, _):
        access = await verifier.verify(issuer.token("ada", "read write", client_id="web"))

    assert (access.issuer, access.subject, access.client_id) == (issuer.url, "ada", "web")
    assert access.scopes == {"read", "write"}


ISSUER = "https://login.example.com"
SECRET = "a secret of thirty-two bytes or so"


def made(key: jose.Key, algorithm: str | None = None, **changes: Any) -> str:
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": START + 600, **changes}
    return jose.sign(claims, key, algorithm=algorithm)


def bound(*, issuers: Sequence[str] = (ISSUER,), **options: Any) -> Jwt:
    clock = ManualClock(START)
    return Jwt(**options).bind(RESOURCE, issuers, Clock(clock, clock))


async def test_given_keys_need_no_network() -> None:
    """A JWK set, one JWK, as text too; or PEM. The issuer does not exist."""
    native = ec.generate_private_key(ec.SECP256R1())
    pem = native.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    private = native.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key = jose.read_key(private)
    for keys in (
        {"keys": [key.public_jwk]},
        json.dumps({"keys": [key.public_jwk]}),
        key.public_jwk,
        pem,
        pem.decode(),
    ):
        verifier = bound(keys=keys)
        assert (await verifier.verify(made(key))).subject == "ada"
        with pytest.raises(InvalidToken, match="signature"):
            await verifier.verify(made(jose.generate_key()))


def secret_key(secret: str) -> dict[str, str]:
    """Return a secret as a JWK (RFC 7518, 6.4)."""
    return {"kty": "oct", "k": urlsafe_b64encode(secret.encode()).rstrip(b"=").decode()}


async def test_given_secret_verifies_no_other_signature() -> None:
    """For HS256, HS384 and HS512; nothing signed with a key pair is accepted beside it."""
    verifier = bound(keys=secret_key(SECRET))
    key = jose.read_key(secret_key(SECRET))

    assert (await verifier.verify(made(key, "HS256"))).subject == "ada"
    for token in (
        made(jose.generate_key()),
        made(jose.read_key(secret_key(SECRET + "x")), "HS256"),
    ):
        with pytest.raises(InvalidToken, match="signature"):
            await verifier.verify(token)
    longer = secret_key(SECRET * 2)
    assert await bound(keys=longer).verify(made(jose.read_key(longer), "HS512"))


async def test_key_pair_verifies_no_secret() -> None:
    """RFC 8725, 2.1: HS256 with the public key as the secret."""
    key = jose.generate_key()
    verifier = bound(keys=key.public_jwk)
    forged = jose.read_key(secret_key(json.dumps(key.public_jwk)))

    with pytest.raises(InvalidToken) as caught:
        await verifier.verify(made(forged, "HS256"))
    assert "wrong alg: found: 'HS256'" in str(caught.value)


async def test_further_audiences_are_accepted() -> None:
    """Entra issues tokens for the id of an application, Cognito for none."""
    key = jose.generate_key()
    app = "api://5a0e"
    more = bound(keys=key.public_jwk, audiences=[app])
    any_audience = bound(keys=key.public_jwk, unchecked_audience=True)

    assert await more.verify(made(key, aud=app))
    assert await more.verify(made(key))
    assert await any_audience.verify(made(key, aud=None))
    one_client = bound(keys=key.public_jwk, unchecked_audience=True, clients=["web"])
    assert await one_client.verify(made(key, aud=None, client_id="web"))
    with pytest.raises(InvalidToken, match="wrong client_id"):
        await one_client.verify(made(key, aud=None, client_id="other"))
    with pytest.raises(InvalidToken, match="wrong aud"):
        await more.verify(made(key, aud=ISSUER))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"audiences": RESOURCE}, "audiences"),
        ({"clients": "web"}, "clients"),
        ({"keys": "nonsense"}, "key"),
        ({"keys": {"keys": []}}, "keys"),
        ({"keys": secret_key("a secret of 24 bytes ...")}, "fits no algorithm"),
    ],
)
def test_wrong_option_is_an_error(options: dict[str, Any], word: str) -> None:
    """When it is made; the message names it, and has no part of a key or secret."""
    with pytest.raises(ConfigurationError, match=word) as caught:
        Jwt(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("keys", [jose.generate_key().public_jwk, secret_key(SECRET)])
def test_given_keys_are_for_one_issuer(keys: dict[str, str]) -> None:
    """With one list for several issuers, each could issue tokens of the others."""
    with pytest.raises(ConfigurationError, match="single issuer"):
        bound(issuers=[ISSUER, "https://other.test"], keys=keys)
    assert secret_key(SECRET)["k"] not in repr(Jwt(keys=keys))


def test_jwt_is_imported_at_its_first_use() -> None:
    """`from genmcp.auth import Bearer` needs no extra; an unknown name is an error as usual."""
    code = (
        "import sys; import genmcp.auth; assert 'joserfc' not in sys.modules;"
        "from genmcp.auth import Jwt; assert 'joserfc' in sys.modules;"
        "print(hasattr(genmcp.auth, 'Nothing'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout == "False\n"


def test_missing_extra_is_named() -> None:
    """An endpoint that needs joserfc fails when it is made, with the command that installs it."""
    code = (
        "import sys; sys.modules['joserfc'] = None;"
        "from genmcp import Endpoint, Suite; from genmcp.auth import Bearer;"
        "Endpoint(Suite(name='a', version='1'), auth=Bearer('https://a/m', ['https://b']))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert 'ConfigurationError: A signed token needs an extra: pip install "genmcp[auth]"' in (
        found.stderr
    )
