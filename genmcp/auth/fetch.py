"""Requests of a server to its authorization servers: bounded in size, time and place."""

import asyncio
import ssl
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import urljoin

import httpx

from genmcp._core.access import AuthorizationUnavailable
from genmcp._core.auth.metadata import check_public_url, is_loopback_url, same_origin
from genmcp.errors import ConfigurationError

MAX_BYTES = 256 * 1024
"""The default of the maximum size of a document of an authorization server, in bytes."""

_MAX_REDIRECTS = 3
# Not compressed: a few bytes could be any number of them.
_HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


class IssuerResponse(NamedTuple):
    """A response of an authorization server. *headers* have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float,
    max_bytes: int = MAX_BYTES,
) -> IssuerResponse:
    """Return the response to a GET, or to a POST of *form*. A GET follows redirects of its origin.

    Args:
        url: HTTPS, or HTTP on a loopback address.
        form: the parameters of a POST.
        headers: further headers.
        timeout: seconds for all of it.
        max_bytes: the maximum size of the body.

    Raises:
        AuthorizationUnavailable: there is no such response. The message has the URL, and no part of
            form and headers.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _fetch(url, form, {**_HEADERS, **(headers or {})}, max_bytes)
    except TimeoutError:
        problem = f"no response within {timeout:g} s"
    except httpx.InvalidURL:
        problem = "the URL is malformed"
    except httpx.HTTPError as error:
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    raise AuthorizationUnavailable(f"{url}: {problem}")


async def _fetch(
    url: str, form: Mapping[str, str] | None, headers: dict[str, str], max_bytes: int
) -> IssuerResponse:
    here = url
    # No proxy of the environment for this machine. A client for each fetch, since a client belongs
    # to an event loop, of which a process may have several; fetches are rare.
    async with httpx.AsyncClient(
        verify=_trusted(), trust_env=not is_loopback_url(url), timeout=None
    ) as client:
        for _ in range(_MAX_REDIRECTS + 1):
            request = client.build_request(
                "GET" if form is None else "POST", here, data=form, headers=headers
            )
            response = await client.send(request, stream=True)
            try:
                if form is not None or not response.has_redirect_location:
                    body = await _body(url, response, max_bytes)
                    return IssuerResponse(response.status_code, response.headers, body)
            finally:
                await response.aclose()
            here = urljoin(here, response.headers["location"])
            if not same_origin(url, here):
                raise AuthorizationUnavailable(
                    f"{url}: redirects to another origin, {here[:200]!r}"
                )
    raise AuthorizationUnavailable(f"{url}: more than {_MAX_REDIRECTS} redirects")


async def _body(url: str, response: httpx.Response, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise AuthorizationUnavailable(f"{url}: the response is larger than {max_bytes} bytes")
    return bytes(body)


def check_fetchable(what: str, url: str, named_by: str) -> None:
    """Check that a document of *named_by* may send us to *url*: HTTPS, or both on this machine.

    Raises:
        AuthorizationUnavailable: it may not; the message names *what*.
    """
    try:
        check_public_url(what, url)
    except ConfigurationError as error:
        raise AuthorizationUnavailable(str(error)) from None
    if is_loopback_url(url) and not is_loopback_url(named_by):
        raise AuthorizationUnavailable(f"{what}: {url!r} is on this machine, unlike {named_by}")


@cache
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificate authorities. Reading them takes tens of milliseconds."""
    return httpx.create_ssl_context()
