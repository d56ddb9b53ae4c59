"""Discovery: from the URL of an MCP server to the endpoints of its authorization server.

2026-07-28, authorization, "Authorization Server Discovery". A server without protected resource
metadata is treated by the rules of 2025-03-26: it is its own authorization server.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from genmcp._core.auth.challenges import Challenge
from genmcp._core.auth.fetching import (
    DocumentState,
    FetchedDocument,
    check_url,
    get_document,
    shown,
)
from genmcp._core.auth.metadata import (
    ResourceMetadata,
    ServerMetadata,
    covers,
    fallback_metadata,
    resource_metadata_urls,
    server_metadata_urls,
)
from genmcp._core.auth.steps import Failure, FlowFailed, FlowFinding, FlowOptions, Steps

T = TypeVar("T")

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


def discover(
    options: FlowOptions, challenge: Challenge | None, *, code: bool = True
) -> Steps[DiscoveredServer]:
    """Find the authorization server of the MCP server at `options.url`.

    Args:
        options: the options of the client.
        challenge: the challenge of the response with 401 or 403, None without one.
        code: whether the authorization code flow is wanted, which needs PKCE and an authorization
            endpoint.

    Raises:
        FlowFailed: No authorization server may be used.
    """
    found = yield from find_resource(options, challenge)
    named = challenge.params.get("resource_metadata") if challenge else None
    server = yield from find_server(options, found, named=named, code=code)
    if options.resource is None:
        resource = None
    else:
        # 2025-03-26 has no such parameter: a server without its metadata does not know it.
        resource = options.resource or (found.resource if found else None)
    return DiscoveredServer(
        server=server, resource=resource, scopes=found.scopes_supported if found else None
    )


def find_resource(
    options: FlowOptions, challenge: Challenge | None
) -> Steps[ResourceMetadata | None]:
    """Return the protected resource metadata of the server, None if it has none.

    Raises:
        FlowFailed: It is that of another resource, or cannot be read.
    """
    urls = resource_metadata_urls(options.url)
    named = challenge.params.get("resource_metadata") if challenge else None
    if named is not None:
        urls.insert(0, check_url(options, named, "resource_metadata of the challenge"))
    problems: list[FetchedDocument] = []
    for url in dict.fromkeys(urls):
        document = _typed((yield from get_document(options, url)), ResourceMetadata)
        if isinstance(document, FetchedDocument):
            _observe(options, "resource metadata", document, expected=url == named)
            problems.append(document)
            continue
        _check_resource(options, document, url)
        if document.dpop_bound_access_tokens_required and options.prover is None:
            raise FlowFailed(
                f"the server accepts only tokens that are bound to a key of the client ({url})",
                advice="dpop=True",
            )
        if not document.authorization_servers and options.issuer is None:
            lacks = FetchedDocument(
                url, DocumentState.BROKEN, problem="it names no authorization server"
            )
            options.observe(
                FlowFinding("resource metadata", lacks.problem, url, ok=False, advice="issuer=")
            )
            problems.append(lacks)
            continue
        servers = ", ".join(map(shown, document.authorization_servers[:_MAX_SERVERS]))
        text = f"resource {shown(document.resource)}, authorization servers {servers or 'none'}"
        options.observe(FlowFinding("resource metadata", text, url))
        return document
    _raise_first(problems, "protected resource metadata")
    options.observe(
        FlowFinding(
            "resource metadata",
            "none: the server is taken for its own authorization server, as in 2025-03-26",
            ok=False,
            advice="issuer= names another one",
        )
    )
    return None


def find_server(
    options: FlowOptions,
    resource: ResourceMetadata | None,
    *,
    named: str | None = None,
    code: bool = True,
) -> Steps[ServerMetadata]:
    """Return the metadata of the authorization server to use.

    Args:
        options: the options of the client.
        resource: the protected resource metadata, None if the server has none.
        named: where the challenge says that this metadata is.
        code: as for `discover`.

    Raises:
        FlowFailed: No document of it may be used.
    """
    issuer = _choose_issuer(options, resource)
    legacy = resource is None and options.issuer is None
    problems: list[FetchedDocument] = []
    refused: FlowFailed | None = None
    for url in server_metadata_urls(issuer):
        found = _typed((yield from get_document(options, url)), ServerMetadata)
        if isinstance(found, FetchedDocument):
            _observe(options, "server metadata", found)
            problems.append(found)
            continue
        try:
            _check_server(options, found, issuer, legacy=legacy, code=code)
        except FlowFailed as failed:
            options.observe(FlowFinding("server metadata", str(failed), url, ok=False))
            refused = refused or failed
            continue
        options.observe(FlowFinding("server metadata", f"issuer {shown(found.issuer)}", url))
        return found
    if refused is not None:
        raise refused
    _raise_first(problems, f"metadata of the authorization server {shown(issuer)}")
    if not legacy:
        raise FlowFailed(
            f"the authorization server {shown(issuer)} has no metadata, neither that of RFC 8414 "
            "nor that of OpenID Connect"
        )
    if named is not None:
        # No server of 2025-03-26, whose endpoints need no metadata, but one with a wrong URL.
        raise FlowFailed(
            f"there is no protected resource metadata at {shown(named)}, where the server says "
            "that it is",
            advice="issuer= names the authorization server",
        )
    metadata = fallback_metadata(options.url)
    for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint):
        check_url(options, endpoint or "", "endpoint")
    options.observe(
        FlowFinding("server metadata", "none: /authorize, /token and /register are used", issuer)
    )
    return metadata


def _typed(document: FetchedDocument, type: type[T]) -> T | FetchedDocument:
    """Return the members of *document* as *type*, or *document* itself with its problem."""
    if document.found is not DocumentState.DOCUMENT:
        return document
    try:
        return msgspec.convert(document.members, type)
    except msgspec.ValidationError as error:
        known = document.members.keys() & {"resource", "authorization_servers", "issuer"}
        # A JSON object of another kind, such as {"detail": "Not Found"}, is no broken document.
        found = DocumentState.BROKEN if known else DocumentState.ABSENT
        return msgspec.structs.replace(document, found=found, problem=f"it is not valid: {error}")


def _observe(
    options: FlowOptions, topic: str, document: FetchedDocument, *, expected: bool = False
) -> None:
    # A document that is absent is no fault while there are other URLs to ask, unless the server
    # has named this one.
    ok = document.found is DocumentState.ABSENT and not expected
    options.observe(FlowFinding(topic, document.problem, document.url, ok=ok))


def _raise_first(problems: Sequence[FetchedDocument], what: str) -> None:
    """Raise the failure for a document that is broken, or might be there the next time."""
    for kind, failure in (
        (DocumentState.BROKEN, Failure.OTHER),
        (DocumentState.UNAVAILABLE, Failure.UNAVAILABLE),
    ):
        for document in problems:
            if document.found is kind:
                advice = "issuer=" if "no authorization server" in document.problem else ""
                raise FlowFailed(
                    f"the {what} at {document.url}: {document.problem}", failure, advice=advice
                )


def _check_resource(options: FlowOptions, metadata: ResourceMetadata, url: str) -> None:
    """Check that the document is that of the server (RFC 9728, 3.3)."""
    resource = metadata.resource
    if options.resource:
        expected, same = options.resource, resource == options.resource
    else:
        # Without the query, which has the key of a user at some servers.
        expected, same = options.url.partition("?")[0], _covers(resource, options.url)
    if not same:
        raise FlowFailed(
            f"the protected resource metadata at {url} is for {shown(resource)}, not for "
            f"{shown(expected)}",
            Failure.RESOURCE,
            advice=f"resource={shown(resource)} accepts it, if you know that this is the server",
        )


def _covers(resource: str, url: str) -> bool:
    try:
        parts = urlsplit(resource)
        return "@" not in parts.netloc and "#" not in resource and covers(resource, url)
    except ValueError:
        return False


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
    options.observe(FlowFinding("authorization server", shown(issuer)))
    return issuer


def _check_server(
    options: FlowOptions, metadata: ServerMetadata, issuer: str, *, legacy: bool, code: bool
) -> None:
    """Check the metadata of *issuer* before anything in it is used."""
    # RFC 8414, 3.3: identical. Without resource metadata no text names the issuer, only an origin,
    # which a slash does not change.
    allowed = {issuer, f"{issuer}/"} if legacy else {issuer}
    if metadata.issuer not in allowed:
        slash = metadata.issuer.rstrip("/") == issuer.rstrip("/")
        raise FlowFailed(
            f"the metadata of the authorization server {shown(issuer)} has the issuer "
            f"{shown(metadata.issuer)}, which must be identical",
            Failure.ISSUER,
            advice=f"issuer={shown(metadata.issuer)} accepts it" if slash else "",
        )
    endpoints: dict[str, Any] = {"token_endpoint": metadata.token_endpoint}
    if code:
        endpoints["authorization_endpoint"] = metadata.authorization_endpoint
    for name, url in endpoints.items():
        if url is None:
            raise FlowFailed(f"the metadata of {shown(issuer)} has no {name}")
        check_url(options, url, name)
    if code:
        _check_query(metadata.authorization_endpoint or "", issuer)
    methods = metadata.code_challenge_methods_supported or ()
    if code and "S256" not in methods and not options.assume_pkce:
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
