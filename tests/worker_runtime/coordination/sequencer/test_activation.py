"""The owner's orders, line by line."""

import json

import pytest

from worker_runtime.coordination.sequencer.orders import Activation, OrderError, parse_activation

KEY = bytes(range(32))


def make_line(**changes: object) -> bytes:
    return json.dumps({"generation": 3, "size": 4, "key": KEY.hex(), **changes}).encode()


def test_an_activation() -> None:
    assert parse_activation(make_line()) == Activation(3, 4, KEY)


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
def test_anything_else_is_refused_without_repeating_it(line: bytes) -> None:
    with pytest.raises(OrderError) as raised:
        parse_activation(line)
    assert KEY.hex()[2:] not in str(raised.value)
