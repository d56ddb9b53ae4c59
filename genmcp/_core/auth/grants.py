"""Token requests without a person: client credentials, workload identity, single sign-on.

RFC 6749, 4.4, RFC 7523 and RFC 8693; the extensions "OAuth Client Credentials" (SEP-1046),
"Workload Identity Federation" (SEP-1933, a draft) and "Enterprise-Managed Authorization" (SEP-990).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"
SAML2: Final = "urn:ietf:params:oauth:token-type:saml2"

ASSERTION_LIFETIME: Final = 300
"""Seconds for which an assertion of a client is valid."""

_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"


def assertion_claims(client_id: str, issuer: str, *, id: str, now: float) -> dict[str, Any]:
    """Return the claims with which a client authenticates (`private_key_jwt`, RFC 7523, 3).

    The audience is the issuer, and nothing else: an assertion for a URL that only the metadata
    names could be made for one server and used at another (draft-ietf-oauth-rfc7523bis, 4).

    Args:
        client_id: the client, which is both issuer and subject.
        issuer: the authorization server.
        id: the `jti`, a new one for each request.
        now: the present Unix time.
    """
    issued = int(now)
    return {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": id,
        "iat": issued,
        "exp": issued + ASSERTION_LIFETIME,
    }


def authentication_params(assertion: str) -> dict[str, str]:
    """Return the parameters that carry an assertion of `assertion_claims` (RFC 7523, 2.2).

    `client_id` is left out beside it: the subject of the assertion is the client.
    """
    return {"client_assertion_type": CLIENT_ASSERTION, "client_assertion": assertion}


def credentials_request(resource: str | None, scopes: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a token request for the client itself (RFC 6749, 4.4.2)."""
    return _request("client_credentials", {}, resource, scopes)


def bearer_request(assertion: str, resource: str | None, scopes: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a token request with an assertion as grant (RFC 7523, 2.1)."""
    return _request(JWT_BEARER, {"assertion": assertion}, resource, scopes)


def exchange_request(
    subject: str,
    subject_type: str,
    *,
    audience: str,
    resource: str | None,
    scopes: Sequence[str],
) -> dict[str, str]:
    """Return the parameters of a request to an identity provider for an ID-JAG.

    Enterprise-Managed Authorization, 4, "Token Exchange".

    Args:
        subject: the ID token or SAML assertion of the user.
        subject_type: `ID_TOKEN` or `SAML2`.
        audience: the issuer of the authorization server that takes the ID-JAG.
        resource: the MCP server.
        scopes: the scopes at the MCP server.
    """
    params = {
        "requested_token_type": ID_JAG,
        "audience": audience,
        "subject_token": subject,
        "subject_token_type": subject_type,
    }
    return _request(_TOKEN_EXCHANGE, params, resource, scopes)


def _request(
    grant: str, params: Mapping[str, str], resource: str | None, scopes: Sequence[str]
) -> dict[str, str]:
    made = {"grant_type": grant, **params}
    if resource is not None:
        made["resource"] = resource
    if scopes:
        made["scope"] = " ".join(scopes)
    return made
