"""Activations from a pipe, however they are cut into pieces."""

import json
import os
from collections.abc import Iterator

import pytest

from worker_runtime.coordination.sequencer.orders import ActivationOrder, OrderError, Orders, parse_activation

KEY = bytes(range(32))


def make_line(**changes: object) -> bytes:
    return json.dumps({"generation": 3, "size": 4, "key": KEY.hex(), **changes}).encode()


def test_an_activation_is_parsed() -> None:
    assert parse_activation(make_line()) == ActivationOrder(3, 4, KEY)


def test_the_key_is_not_shown() -> None:
    assert KEY.hex() not in repr(parse_activation(make_line()))
    assert str(KEY) not in repr(parse_activation(make_line()))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b"[" * 100_000,
        make_line(size=0),
        make_line(size=-1),
        make_line(size=None),
        make_line(generation=-1),
        make_line(generation="x"),
        make_line(generation=1e400),
        make_line(key="xyz"),
        make_line(key=KEY.hex()[2:]),
        make_line(key=7),
    ],
)
def test_other_orders_are_refused_without_repeating_them(line: bytes) -> None:
    with pytest.raises(OrderError) as raised:
        parse_activation(line)
    assert KEY.hex()[2:] not in str(raised.value)


@pytest.fixture
def pipe() -> Iterator[tuple[Orders, int]]:
    read, write = os.pipe()
    yield Orders(read), write
    for descriptor in (read, write):
        os.close(descriptor)


def order(generation: int) -> bytes:
    return make_line(generation=generation) + b"\n"


def test_a_line_that_comes_in_pieces_is_read_when_it_is_complete(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    line = order(1)
    os.write(write, line[:10])
    assert orders.read() is None
    os.write(write, line[10:])
    assert orders.read() == ActivationOrder(1, 4, KEY)


def test_of_several_orders_the_newest_activation_is_read(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    os.write(write, order(1) + order(3) + order(2) + b"\n")
    assert orders.read() == ActivationOrder(3, 4, KEY)


def test_a_stop_notice_stays_and_is_no_activation(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    os.write(write, order(1) + b"stop\n")
    assert (orders.read(), orders.is_stopping) == (ActivationOrder(1, 4, KEY), True)
    os.write(write, order(2))
    assert (orders.read(), orders.is_stopping) == (ActivationOrder(2, 4, KEY), True)


def test_the_end_of_the_owner_raises_eoferror() -> None:
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(EOFError):
        Orders(read).read()
    os.close(read)


def test_a_line_without_end_is_refused(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    os.write(write, b"x" * 40_000)
    assert orders.read() is None
    os.write(write, b"x" * 40_000)
    with pytest.raises(OrderError, match="a line of more than 65536 bytes"):
        orders.read()
