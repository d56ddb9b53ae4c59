"""Discovery: from the URL of an MCP server to the endpoints of its authorization server.

2026-07-28, authorization, "Authorization Server Discovery". A server without protected resource
metadata is treated by the rules of 2025-03-26: it is its own authorization server.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from genmcp.core.auth.challenges import Challenge
from genmcp.core.auth.fetching import NoDocument, check_url, get_document, shown
from genmcp.core.auth.metadata import (
    ResourceMetadata,
    ServerMetadata,
    covers,
    fallback_metadata,
    resource_metadata_urls,
    server_metadata_urls,
)
from genmcp.core.auth.steps import Failure, FlowFailed, FlowOptions, Steps

# All that an authorization request may have, and what replaces parameters of it (RFC 9101).
_REQUEST_PARAMS: Final = {
    *("response_type", "client_id", "redirect_uri", "state", "code_challenge"),
    *("code_challenge_method", "resource", "scope", "prompt", "dpop_jkt", "request", "request_uri"),
}

_MAX_SERVERS: Final = 20  # authorization servers that a resource may list


class DiscoveredServer(msgspec.Struct, frozen=True, kw_only=True):
    """The authorization server of an MCP server, with the parameters of requests to it.

    Args:
        server: the metadata of the authorization server; its issuer is verified.
        resource: the value of `resource` in all requests, None to leave it out.
        scopes: the scopes that the MCP server lists, None if it lists none.
    """

    server: ServerMetadata
    resource: str | None = None
    scopes: Sequence[str] | None = None

    @property
    def issuer(self) -> str:
        """Return the issuer, which the registration and the tokens belong to."""
        return self.server.issuer


def discover(options: FlowOptions, challenge: Challenge | None) -> Steps[DiscoveredServer]:
    """Find the authorization server of the MCP server at `options.url`.

    Args:
        options: the options of the client.
        challenge: the challenge of the response with 401 or 403, None without one.

    Raises:
        FlowFailed: no authorization server may be used.
    """
    named = challenge.params.get("resource_metadata") if challenge else None
    found = yield from find_resource(options, named)
    server = yield from find_server(options, found)
    if server is None:
        if named is not None:
            # No server of 2025-03-26, whose endpoints need no metadata, but one with a wrong URL.
            raise FlowFailed(
                f"there is no protected resource metadata at {shown(named)}, where the server says "
                "that it is",
                advice="issuer= names the authorization server",
            )
        server = fallback_metadata(options.url)
        for endpoint in (server.authorization_endpoint, server.token_endpoint):
            check_url(options, endpoint or "", "endpoint")
        options.report("server metadata", "none: /authorize, /token and /register are used")
    if options.resource is None:
        resource = None
    else:
        # 2025-03-26 has no such parameter: a server without its metadata does not know it.
        resource = options.resource or (found.resource if found else None)
    return DiscoveredServer(
        server=server, resource=resource, scopes=found.scopes_supported if found else None
    )


def find_resource(options: FlowOptions, named: str | None) -> Steps[ResourceMetadata | None]:
    """Return the protected resource metadata of the server, None if it has none.

    Args:
        options: the options of the client.
        named: where the challenge says that it is.

    Raises:
        FlowFailed: it is that of another resource, or cannot be read.
    """
    urls = resource_metadata_urls(options.url)
    if named is not None:
        role = "resource_metadata of the challenge"
        urls.insert(0, check_url(options, named, role, vouched=False))
    problems: list[NoDocument] = []
    for url in dict.fromkeys(urls):
        try:
            document = yield from get_document(options, url, ResourceMetadata, vouched=False)
            if not document.authorization_servers and options.issuer is None:
                raise NoDocument("it names no authorization server (issuer=)", url)
        except NoDocument as problem:
            # Absence is no fault while there are other URLs, unless the server has named this one.
            ok = problem.absent and url != named
            options.report("resource metadata", problem.problem, url, ok=ok)
            problems.append(problem)
            continue
        _check_resource(options, document, url)
        servers = ", ".join(map(shown, document.authorization_servers[:_MAX_SERVERS]))
        text = f"resource {shown(document.resource)}, authorization servers {servers or 'none'}"
        options.report("resource metadata", text, url)
        return document
    _raise_first(problems, "protected resource metadata")
    text = "none: the server is taken for its own authorization server (issuer= names another one)"
    options.report("resource metadata", text, ok=False)
    return None


def find_server(
    options: FlowOptions, resource: ResourceMetadata | None
) -> Steps[ServerMetadata | None]:
    """Return the metadata of the authorization server to use; None if it is the server itself.

    Args:
        options: the options of the client.
        resource: the protected resource metadata, None if the server has none.

    Raises:
        FlowFailed: no document of it may be used.
    """
    issuer = _choose_issuer(options, resource)
    # Without resource metadata no text names the issuer, only an origin, which a slash does not
    # change.
    legacy = resource is None and options.issuer is None
    refused: list[FlowFailed] = []
    problems: list[NoDocument] = []
    for url in server_metadata_urls(issuer):
        try:
            found = yield from get_document(options, url, ServerMetadata)
            _check_server(options, found, {issuer, f"{issuer}/"} if legacy else {issuer})
        except NoDocument as problem:
            options.report("server metadata", problem.problem, url, ok=problem.absent)
            problems.append(problem)
        except FlowFailed as failed:
            options.report("server metadata", str(failed), url, ok=False)
            refused.append(failed)
        else:
            options.report("server metadata", _described(found), url)
            return found
    if refused:
        raise refused[0]
    _raise_first(problems, f"metadata of the authorization server {shown(issuer)}")
    if legacy:
        return None
    raise FlowFailed(
        f"the authorization server {shown(issuer)} has no metadata, neither that of RFC 8414 nor "
        "that of OpenID Connect"
    )


def _raise_first(problems: Sequence[NoDocument], role: str) -> None:
    """Raise the first failure for a document that is broken, or might be there the next time."""
    for problem in problems:
        if not problem.absent:
            raise FlowFailed(f"the {role} at {problem}", problem.failure)


def _described(server: ServerMetadata) -> str:
    """Return what decides on a login in the metadata, for people."""
    features = {
        "PKCE S256": "S256" in (server.code_challenge_methods_supported or ()),
        "client id metadata documents": server.client_id_metadata_document_supported,
        "dynamic registration": server.registration_endpoint is not None,
        "iss in the redirect": server.authorization_response_iss_parameter_supported,
        "revocation of tokens": server.revocation_endpoint is not None,
    }
    offered = ", ".join(name for name, offers in features.items() if offers)
    return f"issuer {shown(server.issuer)}, with {offered or 'a token endpoint only'}"


def _check_resource(options: FlowOptions, metadata: ResourceMetadata, url: str) -> None:
    """Check that the document is that of the server (RFC 9728, 3.3), and can be followed."""
    resource = metadata.resource
    if options.resource:
        expected, same = options.resource, resource == options.resource
    else:
        # Without the query, which has the key of a user at some servers.
        expected, same = options.url.partition("?")[0], covers(resource, options.url)
    if not same:
        raise FlowFailed(
            f"the protected resource metadata at {url} is for {shown(resource)}, not for "
            f"{shown(expected)}",
            Failure.RESOURCE,
            advice=f"resource={shown(resource)} accepts it, if you know that this is the server",
        )
    if metadata.dpop_bound_access_tokens_required and options.prover is None:
        raise FlowFailed(
            f"the server accepts only tokens that are bound to a key of the client ({url})",
            advice="auth=DpopAuth(...)",
        )


def _choose_issuer(options: FlowOptions, resource: ResourceMetadata | None) -> str:
    """Return the issuer of the options if the resource lists it, else the first that it lists."""
    if resource is None:
        issuer = options.issuer or fallback_metadata(options.url).issuer
    else:
        listed = resource.authorization_servers[:_MAX_SERVERS]
        issuer = options.issuer or listed[0]
        # The metadata of both forms, with and without a slash, is at the same URL.
        if listed and issuer.rstrip("/") not in {each.rstrip("/") for each in listed}:
            raise FlowFailed(
                f"the server uses {', '.join(map(shown, listed))}, and not the authorization "
                f"server {shown(issuer)} of the option issuer",
                Failure.ISSUER,
                advice="another issuer=, with a client_id of that one",
            )
    check_url(options, issuer, "authorization server")
    if "?" in issuer:  # RFC 8414, 2
        raise FlowFailed(f"the issuer {shown(issuer)} has a query")
    return issuer


def _check_server(options: FlowOptions, metadata: ServerMetadata, allowed: set[str]) -> None:
    """Check the metadata of an authorization server before anything in it is used.

    *allowed* are the forms of its issuer.
    """
    issuer = min(allowed)
    if metadata.issuer not in allowed:  # RFC 8414, 3.3: identical
        slash = metadata.issuer.rstrip("/") == issuer.rstrip("/")
        raise FlowFailed(
            f"the metadata of the authorization server {shown(issuer)} has the issuer "
            f"{shown(metadata.issuer)}, which must be identical",
            Failure.ISSUER,
            advice=f"issuer={shown(metadata.issuer)} accepts it" if slash else "",
        )
    code = options.grant is None
    for name in ("token_endpoint", "authorization_endpoint") if code else ("token_endpoint",):
        url: str | None = getattr(metadata, name)
        if url is None:
            raise FlowFailed(f"the metadata of {shown(issuer)} has no {name}")
        check_url(options, url, name)
    if not code:
        return
    _check_query(metadata.authorization_endpoint or "", issuer)
    if "S256" not in (metadata.code_challenge_methods_supported or ()) and not options.assume_pkce:
        raise FlowFailed(
            f"the authorization server {shown(issuer)} does not list the PKCE method S256",
            Failure.PKCE,
            advice="assume_pkce=True, if you know that it supports it",
        )


def _check_query(endpoint: str, issuer: str) -> None:
    """Check that the query of the authorization endpoint has no parameter of the request.

    Which of two values is used, such as of redirect_uri, would be up to a server that another one
    may have named (RFC 6749, 3.1: no parameter twice).
    """
    names = {name for name, _ in parse_qsl(urlsplit(endpoint).query, keep_blank_values=True)}
    if own := sorted(names & _REQUEST_PARAMS):
        raise FlowFailed(
            f"the authorization_endpoint of {shown(issuer)} has parameters of the request in its "
            f"own query: {', '.join(own)}"
        )
