"""A client with tokens that are bound to its key, at an issuer and a server of this package."""

import asyncio
import json
import time
from base64 import urlsafe_b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc.jwk import ECKey
from msgspec.structs import replace

from genmcp import Endpoint, Suite, tool
from genmcp.auth.extensions.dpop import Dpop
from genmcp.auth.extensions.proofs import proof_claims
from genmcp.client.auth import ClientCredentials, FileTokens, MemoryTokens, OAuth, TokenStorage
from genmcp.client.auth.dpop import DpopAuth
from genmcp.client.client import Client
from genmcp.client.errors import AuthorizationFailed, Unauthorized
from genmcp.client.options import ClientOptions
from genmcp.core.auth.record import record_key
from tests.client.auth.logins import Place, guarded_place
from tests.contracts.tokens import save
from tests.support.oauth.server import OAuthServer

KEY = ECKey.generate_key("P-256")


def part(text: str, number: int) -> dict[str, Any]:
    """Return the header (0) or the claims (1) of a token."""
    found: dict[str, Any] = json.loads(urlsafe_b64decode(text.split(".")[number] + "=="))
    return found


def credentials(place: Place) -> ClientCredentials:
    """A service, which the issuer knows."""
    place.issuer.add_client("reports", keys=KEY.as_dict(private=False))
    key = KEY.as_pem(private=True)
    return ClientCredentials("reports", key=key, issuer=place.issuer.url)


def service(place: Place) -> DpopAuth:
    """A service with DPoP."""
    return DpopAuth(credentials(place))


def person(place: Place, tokens: TokenStorage | None = None) -> DpopAuth:
    """A person with DPoP."""
    storage = tokens or MemoryTokens()
    return DpopAuth(OAuth("Parts agent", ask=place.browse, tokens=storage))


async def called(place: Place, auth: Any, *, revision: str | None = None, times: int = 1) -> None:
    """Call a tool."""
    async with Client(place.url, auth=auth, options=ClientOptions(revision=revision)) as client:
        for _ in range(times):
            assert (await client.call("whoami", {"name": "me"})).text == "me"


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_each_request_has_a_proof_of_its_own(revision: str) -> None:
    """Also the stream for notifications and the end of a session, in earlier revisions."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        await called(place, person(place), revision=revision, times=3)

    claims = [part(proof, 1) for proof in place.proofs]
    sent = [method for method, token in place.seen if token is not None]
    assert [each["htm"] for each in claims] == sent
    assert len({each["jti"] for each in claims}) == len(claims) >= 4
    assert {each["htu"] for each in claims} == {place.url}
    assert len({json.dumps(part(proof, 0)["jwk"]) for proof in place.proofs}) == 1


async def test_token_is_bound_to_the_key() -> None:
    """RFC 9449, 6.1: the token at the server names the key of the proofs."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        await called(place, service(place))

    (token,) = (token for token in place.tokens if token)
    key = ECKey.import_key(part(place.proofs[0], 0)["jwk"])
    assert token.startswith("DPoP ")
    assert part(token.removeprefix("DPoP "), 1)["cnf"] == {"jkt": key.thumbprint()}


async def test_nonces_of_both_servers_are_honoured() -> None:
    """RFC 9449, 8 and 9: one repetition at each, and the nonce is kept for later requests."""
    issuer = OAuthServer(dpop=True, dpop_nonce=True)
    async with guarded_place(issuer, verify=Dpop(required=True, nonces=True)) as place:
        await called(place, person(place), revision="2026-07-28", times=3)

    assert [request.error for request in issuer.received("token")] == ["use_dpop_nonce", None]
    nonces = [part(proof, 1).get("nonce") for proof in place.proofs]
    assert nonces[0] is None and nonces.count(None) == 1
    assert len(set(nonces[1:])) == 1


async def test_stored_token_is_used_with_its_key(tmp_path: Path) -> None:
    """A second process has the token and the key, and needs no login."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        await called(place, person(place, FileTokens(tmp_path)))
        await called(place, person(place, FileTokens(tmp_path)))

    assert place.grants() == ["authorization_code"]
    assert len({json.dumps(part(proof, 0)["jwk"]) for proof in place.proofs}) == 1


async def test_renewed_token_has_the_same_key() -> None:
    """RFC 9449, 5: the refresh token of a public client is bound to the key, too."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        tokens = MemoryTokens()
        auth = person(place, tokens)
        await called(place, auth)
        key = record_key(place.url, "Parts agent")
        record = await tokens.load(key)
        assert record is not None
        await save(tokens, replace(record, expires=1.0), key)
        await called(place, auth)

    assert place.grants() == ["authorization_code", "refresh_token"]
    assert len({json.dumps(part(proof, 0)["jwk"]) for proof in place.proofs}) == 1


async def test_code_is_bound_to_the_key() -> None:
    """RFC 9449, 10: a stolen code is worth nothing."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        await called(place, person(place))

    (request,) = place.issuer.received("authorize")
    key = ECKey.import_key(part(place.proofs[0], 0)["jwk"])
    assert request.params["dpop_jkt"] == key.thumbprint()


async def test_renewal_keeps_the_key_of_a_login_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 9449, 10: with another key than that of the authorization request, the login is lost."""
    asked, release, passed = asyncio.Event(), asyncio.Event(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + passed)
    monkeypatch.setattr("genmcp.client.auth.oauth.time", clock)
    async with guarded_place(verify=Dpop(required=True)) as place:
        tokens = MemoryTokens()
        await called(place, person(place, tokens))
        place.demands["order"] = "parts:write"

        async def ask(url: str) -> str:
            asked.set()
            await release.wait()
            return await place.browse(url)

        later = DpopAuth(OAuth("Parts agent", ask=ask, tokens=tokens))
        async with Client(place.url, auth=later) as client:
            ordering = asyncio.create_task(client.call("order", {"part": "bolt"}))
            await asked.wait()
            passed = 1e5  # the token expires meanwhile, and another call renews it
            assert (await client.call("whoami")).text == "nobody"
            release.set()
            assert (await ordering).text == "bolt"

    assert place.grants() == ["authorization_code", "refresh_token", "authorization_code"]


async def test_server_without_dpop_gets_bearer_tokens() -> None:
    """An issuer that ignores the proof: the scheme is that of the token."""
    async with guarded_place() as place:
        place.issuer.faults.claims = {"cnf": None}
        place.issuer.faults.tokens = {"token_type": "Bearer"}
        await called(place, service(place))

    assert place.proofs == []


async def test_error_without_dpop_names_the_option() -> None:
    """The server announces that it takes no other tokens (RFC 9728, 2)."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        with pytest.raises(AuthorizationFailed, match="DpopAuth"):
            await called(place, credentials(place))


async def test_wrong_clock_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another token would not help, so that the client asks for none."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        auth = service(place)
        monkeypatch.setattr("genmcp.client.auth.dpop.proof_claims", late)
        with pytest.raises(Unauthorized) as caught:
            await called(place, auth)

    assert "invalid_dpop_proof" in str(caught.value.challenge)
    assert len(place.proofs) == len(place.grants()) == 1


def late(*args: Any, **options: Any) -> dict[str, Any]:
    """Return the claims of a proof for the server that is 1000 s old."""
    age = 1000 if options["token"] else 0
    return proof_claims(*args, **{**options, "now": options["now"] - age})


async def test_request_that_may_have_run_is_not_repeated() -> None:
    """A proxy sends a call twice: the first one runs, and the refusal of the copy comes back."""
    runs = []

    @tool
    async def order(part: str) -> str:
        """Order a part."""
        runs.append(part)
        return part

    async with guarded_place(verify=Dpop(required=True)) as place:
        place.app = Endpoint(Suite(name="parts", version="1", tools=[order]), auth=place.bearer)
        async with Client(place.url, auth=service(place)) as client:
            await client.tools()
            place.replay = True
            with pytest.raises(Unauthorized, match="used before"):
                await client.call("order", {"part": "bolt"})

    assert runs == ["bolt"]
    assert place.grants() == ["client_credentials"]


async def test_private_key_is_in_no_repr() -> None:
    """Neither of the settings nor of the record."""
    async with guarded_place(verify=Dpop(required=True)) as place:
        tokens = MemoryTokens()
        auth = person(place, tokens)
        await called(place, auth)
        record = await tokens.load(record_key(place.url, "Parts agent"))

    assert record is not None and record.dpop_key is not None
    secret = json.loads(record.dpop_key)["d"]
    assert secret not in repr(record) + repr(auth) + repr(auth.auth)
