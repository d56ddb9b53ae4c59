"""Token requests of services, workloads and single sign-on."""

from genmcp._core.auth.grants import (
    ID_TOKEN,
    assertion_claims,
    authentication_params,
    bearer_request,
    credentials_request,
    exchange_request,
)

RESOURCE = "https://mcp.example.com/mcp"
ISSUER = "https://login.example.com"


def test_assertion_is_for_the_issuer_and_short_lived() -> None:
    """RFC 7523, 3: issuer and subject are the client; five minutes."""
    assert assertion_claims("service", ISSUER, id="1", now=1000.7) == {
        "iss": "service",
        "sub": "service",
        "aud": ISSUER,
        "jti": "1",
        "iat": 1000,
        "exp": 1300,
    }


def test_assertion_stands_alone_in_the_request() -> None:
    """OAuth Client Credentials: `client_id` is left out beside an assertion."""
    assert authentication_params("eyJ") == {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "eyJ",
    }


def test_client_credentials_name_resource_and_scopes() -> None:
    """RFC 8707: the resource is in each token request."""
    assert credentials_request(RESOURCE, ["a", "b"]) == {
        "grant_type": "client_credentials",
        "resource": RESOURCE,
        "scope": "a b",
    }


def test_resource_and_scopes_may_be_left_out() -> None:
    """Some authorization servers refuse the parameter; no scope means the default ones."""
    assert credentials_request(None, []) == {"grant_type": "client_credentials"}


def test_workload_presents_its_assertion_as_grant() -> None:
    """RFC 7523, 2.1."""
    assert bearer_request("eyJ", RESOURCE, []) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "eyJ",
        "resource": RESOURCE,
    }


def test_exchange_has_all_required_parameters() -> None:
    """Enterprise-Managed Authorization, 4."""
    made = exchange_request("eyJ", ID_TOKEN, audience=ISSUER, resource=RESOURCE, scopes=["a"])

    assert made == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": ISSUER,
        "subject_token": "eyJ",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "resource": RESOURCE,
        "scope": "a",
    }
