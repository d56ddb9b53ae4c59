"""A client of any revision that answers the questions of one request."""

from typing import Any

from tests.support.asgi import MODERN, Connection
from tests.support.asking import AnsweringClient

__all__ = ["ASKABLE", "request"]

ASKABLE = ["2025-06-18", "2025-11-25", MODERN]
"""The revisions in which a server may ask a client's user."""


async def request(app: Any, version: str, method: str, *answers: Any, **params: Any) -> Connection:
    """Send a request, answer its questions one after another, and return the last response."""
    client = await AnsweringClient.begin(app, version)
    assert isinstance(client, AnsweringClient)
    message = client.request(method, params)
    if version == MODERN:
        connection = await client.send(message)
        for answer in answers:
            (key,) = connection.json["result"]["inputRequests"]
            connection = await client.send(client.retry(connection, **{key: answer}))
        return connection
    async with client.open(message) as connection:
        for answer in answers:
            await client.respond(await connection.message(), answer)
        return await connection.over()
