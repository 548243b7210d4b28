"""Activations from a pipe, however they are cut into pieces."""

import json
import os
from collections.abc import Iterator

import pytest

from worker_runtime.coordination.sequencer.orders import Activation, OrderError, Orders

KEY = bytes(32)


@pytest.fixture
def pipe() -> Iterator[tuple[Orders, int]]:
    read, write = os.pipe()
    yield Orders(read), write
    for descriptor in (read, write):
        os.close(descriptor)


def make_line(generation: int) -> bytes:
    return json.dumps({"generation": generation, "size": 2, "key": KEY.hex()}).encode() + b"\n"


def test_a_line_that_comes_in_pieces(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    line = make_line(1)
    os.write(write, line[:10])
    assert orders.read() is None
    os.write(write, line[10:])
    assert orders.read() == Activation(1, 2, KEY)


def test_the_newest_of_several(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    os.write(write, make_line(1) + make_line(3) + make_line(2) + b"\n")
    assert orders.read() == Activation(3, 2, KEY)


def test_a_stop_notice_stays_and_is_no_activation(pipe: tuple[Orders, int]) -> None:
    orders, write = pipe
    os.write(write, make_line(1) + b"stop\n")
    assert (orders.read(), orders.is_stopping) == (Activation(1, 2, KEY), True)
    os.write(write, make_line(2))
    assert (orders.read(), orders.is_stopping) == (Activation(2, 2, KEY), True)


def test_the_end_of_the_owner() -> None:
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
