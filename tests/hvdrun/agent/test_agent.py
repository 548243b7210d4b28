"""While a released agent waits for its last output, its launcher may go, and errors must reach the launcher."""

import asyncio
from typing import NoReturn

import pytest

from hvdrun.agent.agent import OrderReader, wait_while_launcher_lives
from rendezvous.errors import WireError
from tests.waiting import in_loop


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def fail() -> None:
    raise OSError("the output is gone")


def make_session() -> "asyncio.Future[NoReturn]":
    return asyncio.get_running_loop().create_future()


@in_loop
async def test_an_error_of_the_output_is_raised() -> None:
    with pytest.raises(OSError, match="the output is gone"):
        await wait_while_launcher_lives(OrderReader(asyncio.StreamReader()), make_session(), fail())


@in_loop
async def test_malformed_orders_are_an_error() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"\0\0\0\2xx")
    with pytest.raises(WireError):
        await wait_while_launcher_lives(OrderReader(reader), make_session(), wait_for_ever())


@in_loop
async def test_the_end_of_the_orders_or_of_the_session_ends_the_wait() -> None:
    reader = asyncio.StreamReader()
    reader.feed_eof()
    await wait_while_launcher_lives(OrderReader(reader), make_session(), wait_for_ever())
    session = make_session()
    session.set_exception(TimeoutError())
    await wait_while_launcher_lives(OrderReader(asyncio.StreamReader()), session, wait_for_ever())
    session.exception()
