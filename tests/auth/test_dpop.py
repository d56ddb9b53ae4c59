"""DPoP at an endpoint: challenges, metadata, and which tokens need a proof."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp.auth.extensions.dpop import Dpop
from genmcp.core.auth.challenges import find_challenge, parse_challenges
from genmcp.errors import ConfigurationError
from genmcp.stores.memory import MemoryStore
from tests.auth.dpop_server import OWNER, URL, Target, served
from tests.auth.proofs import Holder
from tests.support.clock import Clock

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"


def bearing(target: Target, **claims: Any) -> list[tuple[str, str]]:
    """Return the header of a request with a bearer token."""
    return [("Authorization", f"Bearer {target.issuer.token('ann', audience=URL, **claims)}")]


def error_of(response: httpx.Response, scheme: str) -> str | None:
    """Return the error code in the challenge with *scheme*."""
    challenge = find_challenge(
        parse_challenges(response.headers.get_list("www-authenticate")), scheme
    )
    return challenge.params.get("error") if challenge else None


async def test_accepted_offers_both_schemes() -> None:
    """RFC 9449, 7.1. Bearer is first, for clients that read one challenge only."""
    async with served(scopes=("read",)) as target:
        response = await target.send([])

    shared = {"scope": "read", "resource_metadata": METADATA}
    bearer, dpop = parse_challenges(response.headers.get_list("www-authenticate"))
    assert response.status_code == 401
    assert (bearer.scheme, bearer.params) == ("Bearer", shared)
    assert (dpop.scheme, dpop.params) == ("DPoP", {**shared, "algs": "ES256 EdDSA"})


async def test_required_offers_no_other_scheme() -> None:
    """A client must not fetch a token that would be refused."""
    async with served(required=True) as target:
        response = await target.send([])

    (challenge,) = parse_challenges(response.headers.get_list("www-authenticate"))
    assert challenge.scheme == "DPoP"
    assert challenge.params == {"algs": "ES256 EdDSA", "resource_metadata": METADATA}


async def test_bearer_tokens_remain_accepted() -> None:
    """`accepted` is for the time in which not all clients have DPoP."""
    async with served() as target:
        twice = [await target.send(bearing(target)) for _ in range(2)]
        proven = await target.send(target.changed())

    assert [each.status_code for each in (*twice, proven)] == [200, 200, 200]


async def test_error_is_in_the_challenge_of_its_scheme() -> None:
    """RFC 9449, 7.1: the other challenge is an offer."""
    async with served() as target:
        bearer = await target.send([("Authorization", "Bearer forged")])
        dpop = await target.send([("Authorization", "DPoP forged"), ("DPoP", target.proof())])

    assert (error_of(bearer, "Bearer"), error_of(bearer, "DPoP")) == ("invalid_token", None)
    assert (error_of(dpop, "Bearer"), error_of(dpop, "DPoP")) == (None, "invalid_token")


async def test_missing_scope_is_in_the_challenge_of_its_scheme() -> None:
    """A client that sends a proof asks for scopes as one that does not."""
    async with served(scopes=("write",)) as target:
        response = await target.send(target.changed())

    assert response.status_code == 403
    assert error_of(response, "DPoP") == "insufficient_scope"


async def test_required_refuses_tokens_without_a_key() -> None:
    """Also after the token was verified once."""
    async with served(required=True) as target:
        responses = [await target.send(bearing(target)) for _ in range(2)]

    assert [each.status_code for each in responses] == [401, 401]
    assert error_of(responses[1], "DPoP") == "invalid_token"


async def test_bound_token_is_refused_without_the_option() -> None:
    """Without a check of the proof, a thief could send the token, too."""
    async with served(accepted=False) as target:
        bound = await target.send(bearing(target, cnf={"jkt": OWNER.thumbprint}))
        proven = await target.send(target.changed())

    assert error_of(bound, "Bearer") == "invalid_token"
    assert proven.status_code == 401
    assert "DPoP" not in proven.headers["www-authenticate"]


@pytest.mark.parametrize("accepted", [True, False])
async def test_token_that_is_bound_in_any_way_is_refused_as_bearer(accepted: bool) -> None:
    """Also by a malformed thumbprint: the issuer meant to bind it."""
    async with served(accepted=accepted) as target:
        responses = [await target.send(bearing(target, cnf=cnf)) for cnf in ({"jkt": 7}, {}, "x")]

    assert [each.status_code for each in responses] == [401, 401, 401]


async def test_bound_token_is_refused_as_bearer_after_it_was_proven() -> None:
    """The verdict on a token is kept, and must not open a way without a proof."""
    async with served() as target:
        proven = await target.send(target.changed())
        stolen = await target.send([("Authorization", f"Bearer {target.token}")])

    assert (proven.status_code, stolen.status_code) == (200, 401)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"dpop_signing_alg_values_supported": ["ES256", "EdDSA"]}),
        (
            {"required": True},
            {
                "dpop_signing_alg_values_supported": ["ES256", "EdDSA"],
                "dpop_bound_access_tokens_required": True,
            },
        ),
        ({"accepted": False}, {}),
    ],
)
async def test_metadata_announces_proofs(options: Any, expected: dict[str, Any]) -> None:
    """RFC 9728, 2."""
    async with served(**options) as target, httpx.AsyncClient() as client:
        found = (await client.get(f"{target.at}/.well-known/oauth-protected-resource/mcp")).json()

    assert {name: value for name, value in found.items() if name.startswith("dpop")} == expected


async def test_proof_is_accepted_for_300_seconds() -> None:
    """By the clock of the store, which all processes share."""
    async with served() as target:
        old = await target.send(target.changed(claims={"iat": int(time.time()) - 310}))
        new = await target.send(target.changed(claims={"iat": int(time.time()) - 280}))

    assert (old.status_code, new.status_code) == (401, 200)


async def test_verifier_needs_a_bearer() -> None:
    """It knows the resource and the issuers."""
    with pytest.raises(ConfigurationError, match="verify= of a Bearer"):
        await Dpop().verify("t")


async def test_copy_is_refused_by_another_process(tmp_path: Path) -> None:
    """The ids of proofs are in the store, which processes share."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with (
        served(required=True, store=store) as one,
        served(required=True, store=store, issuer=one.issuer) as other,
    ):
        headers = one.changed()
        first, copy = await one.send(headers), await other.send(headers)

    assert (first.status_code, copy.status_code) == (200, 401)
    assert "used before" in copy.json()["error_description"]


async def test_copy_of_a_proof_from_the_future_is_refused() -> None:
    """Such a proof is valid for up to twice the window, and its id is stored for as long."""
    clock = Clock(time.time())
    async with served(required=True, store=MemoryStore(clock=clock)) as target:
        headers = target.changed(claims={"iat": clock.now + 290})
        first = await target.send(headers)
        await clock.advance(580)
        copy = await target.send(headers)

    assert (first.status_code, copy.status_code) == (200, 401)
    assert "used before" in copy.json()["error_description"]


async def test_same_id_of_another_client_is_no_copy() -> None:
    """A `jti` is unique for its client only."""
    async with served(required=True) as target:
        other = Holder()
        token = target.issuer.token("bob", audience=URL, cnf={"jkt": other.thumbprint})
        proof = other.proof("POST", URL, token, claims={"jti": "1"})
        first = await target.send(target.changed(claims={"jti": "1"}))
        second = await target.send(target.with_proof(proof, token=token))

    assert (first.status_code, second.status_code) == (200, 200)


async def test_full_store_is_no_reason_to_throw_a_token_away() -> None:
    """A copy and its original would look the same: 503, without a challenge."""
    store = MemoryStore()
    async with served(required=True, store=store) as target:
        await store.aclose()
        response = await target.send(target.changed())

    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "www-authenticate" not in response.headers


async def test_trailing_slash_does_not_matter() -> None:
    """The endpoint is served with and without it."""
    async with served(required=True) as target:
        response = await target.send(target.changed(claims={"htu": URL + "/"}))

    assert response.status_code == 200


async def test_pages_may_send_proofs() -> None:
    """A client in a browser needs the header, and reads the nonce."""
    origin = {"Origin": "http://127.0.0.1:3000", "Access-Control-Request-Method": "POST"}
    async with served(required=True) as target, httpx.AsyncClient() as client:
        response = await client.options(f"{target.at}/mcp", headers=origin)

    assert "dpop" in response.headers["access-control-allow-headers"]
    assert "dpop-nonce" in response.headers["access-control-expose-headers"]
