"""Assertions of other issuers (RFC 7523), and the ID-JAGs that an issuer makes for others."""

import secrets
from collections.abc import Sequence
from typing import Any

from tests.support.oauth.clients import IssuerClient
from tests.support.oauth.keys import read_jwt
from tests.support.oauth.ledger import Ledger
from tests.support.oauth.refusal import OAuthRefusal

ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_JAG_TYPE = "oauth-id-jag+jwt"
ID_JAG_TTL = 300


def read_assertion(ledger: Ledger, assertion: str) -> tuple[dict[str, Any], str]:
    """Return the claims of an assertion of a trusted issuer, and its `typ` if it is an ID-JAG.

    Raises:
        OAuthRefusal: it is invalid, or for another server.
    """
    reason = "its issuer is not trusted"
    for issuer, jwks in ledger.trusted.items():
        for typ in (ID_JAG_TYPE, ""):
            types = (typ,) if typ else ("", "jwt")
            try:
                claims = read_jwt(assertion, jwks["keys"], types=types, now=ledger.clock())
            except ValueError as error:
                reason = str(error)
                continue
            audience = claims.get("aud")
            named = {str(each) for each in (audience if isinstance(audience, list) else [audience])}
            # Of an ID-JAG, the issuer alone; RFC 7523, 3 allows the token endpoint as well.
            allowed = {ledger.url} if typ else {ledger.url, f"{ledger.base}/token"}
            if claims.get("iss") != issuer:
                reason = "iss is not the issuer of the key"
            elif not allowed & named:
                reason = "aud is another server"
            elif not claims.get("sub"):
                reason = "sub is missing"
            elif typ and not ledger.see_once("id-jag", claims.get("jti")):
                reason = "jti was used before"
            else:
                return claims, typ
    raise OAuthRefusal("invalid_grant", f"assertion: {reason}")


def new_id_jag(
    ledger: Ledger,
    client: IssuerClient,
    token: str,
    audience: str,
    scopes: Sequence[str],
    resources: Sequence[str],
) -> dict[str, Any]:
    """Exchange the ID token of a client for an ID-JAG; return the token response.

    Args:
        ledger: the state of this issuer, the identity provider.
        client: the client that was authenticated.
        token: its ID token.
        audience: the authorization server that the ID-JAG is for.
        scopes: the requested scopes.
        resources: the requested resources.
    """
    now = int(ledger.clock())
    try:
        claims = read_jwt(token, ledger.keys.jwks["keys"], types=("", "jwt"), now=now)
    except ValueError as error:
        raise OAuthRefusal("invalid_grant", f"subject_token: {error}") from None
    if claims.get("aud") != client.client_id or claims.get("iss") != ledger.url:
        raise OAuthRefusal("invalid_grant", "subject_token was issued to another client")
    assertion = {
        "iss": ledger.url,
        "sub": claims["sub"],
        "aud": audience,
        "client_id": client.known_as or client.client_id,
        "jti": secrets.token_hex(8),
        "iat": now,
        "exp": now + ID_JAG_TTL,
        "scope": " ".join(scopes) or None,
        "resource": (resources[0] if len(resources) == 1 else list(resources)) or None,
    }
    present = {name: value for name, value in assertion.items() if value is not None}
    answer = {
        "access_token": ledger.keys.sign(present, ID_JAG_TYPE),
        "issued_token_type": ID_JAG,
        # RFC 8693, 2.2.1: it is not an access token.
        "token_type": "N_A",
        "expires_in": ID_JAG_TTL,
        "scope": present.get("scope"),
    }
    return {name: value for name, value in answer.items() if value is not None}
