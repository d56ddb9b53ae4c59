"""The flow of services, workloads and employees: grants, renewal, step-up, and errors."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp.client.auth.identities import ID_JAG, by_assertion, by_exchange
from genmcp.client.auth.oauth import by_credentials
from genmcp.core.auth.flow import rejected, usable
from genmcp.core.auth.record import Record
from genmcp.core.auth.steps import Failure, FlowFailed, FlowOptions, Grant
from tests.core.auth.auth_world import (
    ACCESS,
    ISSUER,
    URL,
    Prover,
    World,
    challenge,
    form_of,
    page,
    raw,
)

ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
IDP = "https://idp.example.com"
ASSERTION = "header.claims.signature"
EXCHANGED = {"access_token": "the.id.jag", "issued_token_type": ID_JAG, "token_type": "N_A"}


def service(**options: Any) -> World:
    """A world in which the client is a service with a secret."""
    known = {"client_id": "service", "client_secret": "client-secret", "grant": by_credentials}
    world = World(**{**known, **options})
    world.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    world.metadata.pop("authorization_endpoint")
    world.metadata.pop("code_challenge_methods_supported")
    return world


def obtained(
    world: World, grant: Grant = by_credentials, text: str = "Bearer", **more: Any
) -> Record | None:
    """The record after a response with a challenge."""
    world.options = replace(world.options, grant=grant)
    return world.run(rejected(world.options, challenge(text, **more)))


def had(world: World, grant: Grant = by_credentials) -> Record:
    """The record after a first token."""
    record = obtained(world, grant)
    assert record is not None
    return record


def exchange(world: World, token_endpoint: str | None = None, **options: Any) -> Grant:
    """The grant of an employee, with a provider that answers as it should."""
    metadata = {"issuer": IDP, "token_endpoint": f"{IDP}/token"}
    world.pages[f"{IDP}/.well-known/oauth-authorization-server"] = page(metadata)
    world.pages.setdefault(f"{IDP}/token", page(EXCHANGED))
    made = {"url": IDP, "issuer": IDP, "client_id": "at-idp", "grant": by_credentials, **options}
    idp = FlowOptions(now=world.options.now, random=world.random, **made)
    return by_exchange(idp, token_endpoint, lambda: "id.token.text")


def test_service_needs_neither_user_nor_authorization_endpoint() -> None:
    """OAuth Client Credentials: discovery, and one token request."""
    world = service()
    record = obtained(world, text='Bearer scope="parts:read"')

    (token,) = world.to("/token")
    assert form_of(token) == {
        "grant_type": "client_credentials",
        "resource": URL,
        "scope": "parts:read",
        "client_id": "service",
        "client_secret": "client-secret",
    }
    assert record is not None and record == world.record
    assert (record.access_token, record.requested) == (ACCESS, ("parts:read",))
    assert record.refresh_token is None  # the response has one, which is not kept
    assert world.asks == [] and world.listened == []


def test_service_may_choose_its_method() -> None:
    """For an authorization server with wrong metadata."""
    world = service(method="client_secret_basic")
    had(world)

    (token,) = world.to("/token")
    assert dict(token.headers)["Authorization"].startswith("Basic ")


def test_service_signs_a_new_assertion_each_time() -> None:
    """`private_key_jwt`: the audience is the issuer, and no id comes twice."""
    signed: list[Mapping[str, Any]] = []

    def sign(claims: Mapping[str, Any]) -> str:
        signed.append(claims)
        return "a.b.c"

    world = service(client_secret=None, sign=sign)
    had(world)
    world.record = None
    had(world)

    form = form_of(world.to("/token")[0])
    assert form["client_assertion"] == "a.b.c"
    assert "client_id" not in form
    assert [each["aud"] for each in signed] == [ISSUER, ISSUER]
    assert signed[0]["jti"] != signed[1]["jti"]


def test_token_is_used_until_it_is_due() -> None:
    """No request for one that lives."""
    world = service()
    record = had(world)
    world.fetches.clear()

    again = world.run(usable(world.options, record))
    stored = world.run(usable(world.options))

    assert again is record
    assert stored == record
    assert world.fetches == []


def test_due_token_is_replaced_without_discovery() -> None:
    """The record has the token endpoint; the scopes are those of before."""
    world = service(scopes=["parts:read"])
    record = had(world)
    world.fetches.clear()
    world.time += 3570
    world.token["access_token"] = "second"

    new = world.run(usable(world.options, record))

    assert world.urls == [f"{ISSUER}/token"]
    assert form_of(world.fetches[0])["scope"] == "parts:read"
    assert new is not None and new == world.record
    assert (new.access_token, new.renewals) == ("second", 1)


def test_token_of_another_process_is_used() -> None:
    """It was stored after this process has read the record."""
    world = service()
    record = had(world)
    world.time += 3570
    world.change(access_token="second", expires=world.time + 3600)
    world.fetches.clear()

    new = world.run(usable(world.options, record))

    assert new is not None and new.access_token == "second"
    assert world.fetches == []


def test_without_a_record_there_is_no_token() -> None:
    """The first request shows whether the server wants one, and which."""
    world = service()

    assert world.run(usable(world.options)) is None


def test_record_of_another_client_is_not_used() -> None:
    """Two services may share a storage by mistake."""
    world = service()
    had(world)
    other = service(client_id="other")
    other.record = world.record

    assert other.run(usable(other.options)) is None
    replaced = obtained(other)
    assert replaced is not None and replaced.client.id == "other"


@pytest.mark.parametrize("life", [3570, 3601])
def test_failing_renewal_uses_the_token_while_it_lives(life: float) -> None:
    """An outage of the authorization server ends with it."""
    world = service()
    record = had(world)
    world.time += life
    world.pages[f"{ISSUER}/token"] = raw("", 503)
    flow = usable(world.options, record)

    if life < 3600:
        found = world.run(flow)
        assert found is not None and found.access_token == record.access_token
    else:
        with pytest.raises(FlowFailed, match="503") as caught:
            world.run(flow)
        assert caught.value.failure is Failure.UNAVAILABLE
    assert world.record == record


def test_refused_renewal_ends_the_attempt() -> None:
    """No second token request in one attempt; the server may have moved since."""
    world = service()
    record = had(world)
    world.time += 3601
    world.pages[f"{ISSUER}/token"] = page({"error": "invalid_grant"}, 400)

    with pytest.raises(FlowFailed, match="invalid_grant"):
        world.run(usable(world.options, record))

    assert world.run(usable(world.options)) is None


def test_failing_assertion_is_tried_again_by_the_next_request() -> None:
    """It is reported, and the authorization server is not asked without an assertion."""
    world = service()
    assertions: list[object] = ["first", None, "second"]
    had(world, by_assertion(lambda: assertions.pop(0)))
    world.time += 3601
    world.token["access_token"] = "second"

    with pytest.raises(FlowFailed, match="must return a text"):
        world.run(usable(world.options))
    assert ("token", False) in [(each.topic, each.ok) for each in world.events]
    renewed = world.run(usable(world.options))
    assert renewed is not None and renewed.access_token == "second"
    assert len(world.to("/token")) == 2


def test_rejected_token_is_replaced_once() -> None:
    """A server that rejects each token must not keep its clients busy."""
    world = service()
    first = had(world)
    world.token["access_token"] = "second"

    second = obtained(world, used=first)
    assert second is not None and second.access_token == "second"
    assert obtained(world, used=second, attempt=2) is None
    assert obtained(world, used=second, attempt=4) is None


def test_rejected_token_was_replaced_by_another_process() -> None:
    """One new token is enough for both."""
    world = service()
    first = had(world)
    world.change(access_token="second")
    world.fetches.clear()

    record = obtained(world, used=first)

    assert record is not None and record.access_token == "second"
    assert world.fetches == []


def test_missing_scope_is_asked_for_beside_the_others() -> None:
    """A new token has the scopes of the one before, too."""
    world = service(scopes=["parts:read"])
    first = had(world)
    text = 'Bearer error="insufficient_scope", scope="parts:write"'

    wide = obtained(world, text=text, status=403, used=first)

    assert wide is not None and wide.requested == ("parts:read", "parts:write")
    assert form_of(world.to("/token")[-1])["scope"] == "parts:read parts:write"
    assert obtained(world, text=text, status=403, used=wide, attempt=2) is None


def test_missing_scope_may_be_there_already() -> None:
    """Another process has requested it."""
    world = service()
    first = had(world)
    world.change(access_token="second", scopes=("parts:write",))
    world.fetches.clear()
    text = 'Bearer error="insufficient_scope", scope="parts:write"'

    record = obtained(world, text=text, status=403, used=first)

    assert record is not None and record.access_token == "second"
    assert world.fetches == []


def test_missing_scope_before_the_first_token() -> None:
    """A server that lets anonymous clients call some of its tools."""
    world = service()
    text = 'Bearer error="insufficient_scope", scope="parts:write"'

    record = obtained(world, text=text, status=403)

    assert record is not None and record.requested == ("parts:write",)


@pytest.mark.parametrize(
    ("status", "text"), [(403, "Bearer"), (403, 'Basic realm="x"'), (429, "Bearer")]
)
def test_other_refusals_are_errors(status: int, text: str) -> None:
    """A token would not help."""
    assert obtained(service(), status=status, text=text) is None


def moved(world: World) -> None:
    """Let the server use another authorization server."""
    there = "https://new.example.com"
    world.prm["authorization_servers"] = [there]
    metadata = {**world.metadata, "issuer": there, "token_endpoint": f"{there}/token"}
    world.pages[f"{there}/.well-known/oauth-authorization-server"] = page(metadata)
    world.pages[f"{there}/token"] = page({"access_token": "moved", "token_type": "Bearer"})


def test_server_that_moves_gets_no_credentials() -> None:
    """2026-07-28, "Authorization Server Binding": an error, and no secret for the new one."""
    world = service()
    first = had(world)
    moved(world)

    with pytest.raises(FlowFailed, match="belongs to the authorization server") as caught:
        obtained(world, used=first)

    assert caught.value.failure is Failure.ISSUER
    assert not any("new.example.com/token" in url for url in world.urls)


def test_document_without_support_for_it_is_an_error() -> None:
    """A client id metadata document, where the authorization server supports none."""
    world = service(client_id="https://reports.example.com/client.json", client_secret=None)
    world.options = replace(world.options, sign=lambda claims: "a.b.c")

    with pytest.raises(FlowFailed, match="client_id=") as caught:
        obtained(world)

    assert caught.value.failure is Failure.REGISTRATION
    assert world.to("/token") == []


def test_workload_sends_its_assertion_once() -> None:
    """Workload Identity Federation: after an error neither a retry nor another grant."""
    world = World(issuer=ISSUER)
    world.pages[f"{ISSUER}/token"] = page({"error": "invalid_grant"}, 400)

    with pytest.raises(FlowFailed, match="invalid_grant") as caught:
        obtained(world, by_assertion(lambda: f" {ASSERTION}\n"))

    (token,) = world.to("/token")
    assert form_of(token) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": ASSERTION,
        "resource": URL,
    }
    assert ASSERTION not in str(caught.value)


def test_workload_may_have_a_client_id() -> None:
    """Where the authorization server knows it by one."""
    world = World(issuer=ISSUER, client_id="workload")

    record = had(world, by_assertion(lambda: ASSERTION))

    assert form_of(world.to("/token")[0])["client_id"] == "workload"
    assert record.client.id == "workload"


@pytest.mark.parametrize("supplied", ["", " ", None, b"bytes"])
def test_workload_without_an_assertion_sends_nothing(supplied: Any) -> None:
    """The error names the option."""
    world = World(issuer=ISSUER)

    with pytest.raises(FlowFailed, match="assertion must return a text"):
        obtained(world, by_assertion(lambda: supplied))

    assert world.to("/token") == []


def test_employee_exchanges_and_redeems() -> None:
    """Enterprise-Managed Authorization, 4 and 5."""
    world = service(issuer=ISSUER)
    record = had(world, exchange(world))

    at_provider, at_issuer = (form_of(fetch) for fetch in world.to("/token"))
    assert at_provider == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": ID_JAG,
        "audience": ISSUER,
        "resource": URL,
        "subject_token": "id.token.text",
        "subject_token_type": ID_TOKEN,
        "client_id": "at-idp",
    }
    assert at_issuer["assertion"] == "the.id.jag"
    assert at_issuer["client_secret"] == "client-secret"
    assert record.access_token == ACCESS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"client_id": "at-idp"}),
        ({"client_id": None}, {}),
        ({"client_secret": "idp-secret"}, {"Authorization": "Basic YXQtaWRwOmlkcC1zZWNyZXQ="}),
        ({"sign": lambda claims: "a.b.c"}, {"client_assertion": "a.b.c"}),
    ],
)
@pytest.mark.parametrize("token_endpoint", [None, f"{IDP}/token"])
def test_employee_authenticates_at_the_provider(
    token_endpoint: str | None, options: dict[str, Any], expected: dict[str, str]
) -> None:
    """With or without metadata of the provider; a client without an id is anonymous."""
    world = service(issuer=ISSUER)
    had(world, exchange(world, token_endpoint, **options))

    sent = world.to("/token")[0]
    found = {**form_of(sent), **dict(sent.headers)}
    assert {name: found.get(name) for name in expected} == expected
    assert (token_endpoint is None) == any("idp" in url for url in world.urls if "well" in url)
    if not expected:
        assert "client_id" not in found


@pytest.mark.parametrize(
    "response",
    [
        {**EXCHANGED, "token_type": "Bearer"},
        {**EXCHANGED, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"},
        {"access_token": "the.id.jag", "token_type": "N_A"},
        {"error": "invalid_grant", "error_description": "id.token.text has expired"},
    ],
)
def test_employee_redeems_nothing_but_an_id_jag(response: dict[str, Any]) -> None:
    """An access token of the provider must not reach the authorization server."""
    world = service(issuer=ISSUER)
    world.pages[f"{IDP}/token"] = page(response, 400 if "error" in response else 200)

    with pytest.raises(FlowFailed, match="the identity provider") as caught:
        obtained(world, exchange(world))

    assert f"{ISSUER}/token" not in world.urls
    assert not any(secret in str(caught.value) for secret in ("the.id.jag", "id.token.text"))


def test_employee_trusts_no_other_authorization_server() -> None:
    """A server must not direct the assertion of its users elsewhere."""
    world = service(issuer=ISSUER)
    world.prm["authorization_servers"] = ["https://evil.example.com"]

    with pytest.raises(FlowFailed, match="issuer") as caught:
        obtained(world, exchange(world))

    assert caught.value.failure is Failure.ISSUER
    assert world.to("/token") == []


def test_service_binds_its_token_to_a_key() -> None:
    """DPoP: a proof at the token endpoint, and later one with the same key."""
    world = service(prover=Prover())
    world.token["token_type"] = "DPoP"
    record = had(world)
    world.time += 3570
    world.run(usable(world.options, record))

    assert (record.token_type, record.dpop_key) == ("DPoP", "key-1")
    proofs = [dict(fetch.headers)["DPoP"].split() for fetch in world.to("/token")]
    assert [(key, url) for key, _, url, *_ in proofs] == [("key-1", f"{ISSUER}/token")] * 2


def test_token_without_the_key_is_reported() -> None:
    """An authorization server without DPoP ignores the proof, and the token can be stolen."""
    world = service(prover=Prover())

    assert had(world).dpop_key is None
    assert any("does not support DPoP" in each.text for each in world.events if not each.ok)


def test_employee_sends_no_proof_to_the_provider() -> None:
    """An ID-JAG is bound to no key."""
    world = service(issuer=ISSUER, prover=Prover())
    had(world, exchange(world))

    at_provider, at_issuer = world.to("/token")
    assert "DPoP" not in dict(at_provider.headers)
    assert "DPoP" in dict(at_issuer.headers)


def test_server_that_requires_a_key_gets_no_other_token() -> None:
    """RFC 9728, 2: the error names the option before anything is requested."""
    world = service()
    world.prm["dpop_bound_access_tokens_required"] = True

    with pytest.raises(FlowFailed, match="DpopAuth"):
        obtained(world)

    assert world.to("/token") == []
