"""Requests to resources through a channel in memory."""

from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import ClientInfo, Request
from genmcp.protocol.params import PaginatedRequestParams
from genmcp.protocol.resources import ReadResourceRequestParams, ReadResourceResult
from genmcp.protocol.revisions.chain import LATEST
from genmcp.resources.resource import ResourceRoute
from genmcp.suite.collection import RESOURCES, Collection
from tests.support.channels import channel_of, in_thread


def channel(uri: str | None = None) -> Channel:
    """The channel of a request that reads `uri`, or lists."""
    params: Any = PaginatedRequestParams() if uri is None else ReadResourceRequestParams(uri=uri)
    method = "resources/list" if uri is None else "resources/read"
    request = Request(
        id=1,
        method=method,
        params=params,
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
    )
    return channel_of(request, threads=in_thread)


def resources(*providers: object) -> Collection:
    return Collection(RESOURCES, [ResourceRoute.of(provider) for provider in providers])


async def read(provider: object, uri: str) -> ReadResourceResult:
    """Read `uri` from one resource or repository."""
    line = channel(uri)
    result = await ResourceRoute.of(provider).handle(line.request, line)
    assert isinstance(result, ReadResourceResult)
    return result


async def page_of(
    held: Collection, size: int, cursor: str | None = None, *, method: str = "resources/list"
) -> Any:
    """One page of a list."""
    return await held.lists[method].page(cursor, channel(), size=size)


async def uris(held: Collection, size: int) -> list[list[str]]:
    """All pages of a list, each as its URIs."""
    pages: list[list[str]] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        page = await page_of(held, size, cursor)
        pages.append([each.uri for each in page.resources])
        cursor = page.next_cursor
    return pages
