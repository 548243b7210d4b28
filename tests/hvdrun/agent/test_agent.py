"""An agent's orders; what it does for a whole job is in tests/system."""

import asyncio

import pytest

from hvdrun.agent.agent import Orders
from rendezvous import wire
from rendezvous.core.effects import Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.errors import WireError
from rendezvous.orders import Order, Release

ORDERS: tuple[Order, ...] = (Terminate(Worker(Slot("a", 0), 1), 5.0, "the test wants it"), Release())


def read_orders(*chunks: bytes) -> list[Order | None]:
    """The orders in these chunks, up to their end."""

    async def read() -> list[Order | None]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        orders = Orders(reader)
        found = [await orders.next()]
        while found[-1] is not None:
            found.append(await orders.next())
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_orders_come_one_by_one_however_they_were_cut(size: int) -> None:
    data = b"".join(map(wire.encode_order, ORDERS))
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert read_orders(*chunks) == [*ORDERS, None]


def test_a_last_order_that_is_not_complete_is_none() -> None:
    assert read_orders(wire.encode_order(ORDERS[0])[:-1]) == [None]


@pytest.mark.parametrize("data", [b"\xff" * 8, wire.frame(b"\xff\xff"), wire.frame(b"")])
def test_bytes_that_are_no_orders_are_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        read_orders(data)
