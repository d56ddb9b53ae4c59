"""Types of `genmcp.handles` that checkers infer. Checked by test_checkers, not run."""

from typing import assert_type

from msgspec import Struct

from genmcp import Channel, Job, Run, job, tool
from genmcp.handles import Handle


class Cart(Struct):
    items: list[str] = []


@tool
async def start(channel: Channel) -> Handle[Cart]:
    cart = await Handle.new(channel, Cart())
    assert_type(cart, Handle[Cart])
    assert_type(await Handle[Cart].new(channel, Cart(), ttl=60), Handle[Cart])
    return cart


@tool
async def add(cart: Handle[Cart], item: str, channel: Channel) -> str:
    async with cart as value:
        assert_type(value, Cart)
        value.items.append(item)
    assert_type(await cart.get(), Cart)
    assert_type(await Handle[Cart].list(channel), list[Handle[Cart]])
    assert_type(Handle[Cart](cart.id, channel), Handle[Cart])
    return cart.id


@job
async def pack(run: Run, cart: Handle[Cart]) -> Handle[Cart]:
    return await Handle.new(run, await cart.get())


def packed(cart: Handle[Cart]) -> None:
    assert_type(pack.job(cart), Job[Handle[Cart]])


async def wrong(channel: Channel) -> None:
    Handle[Cart]("id", "channel")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
