"""What a sequencer process and its owner say to each other."""

import json

import pytest

from rendezvous.wire.sequencing import Activation, read_port

KEY = bytes(range(32))


def test_an_activation_is_one_line_of_json() -> None:
    line = Activation(3, 4, KEY).encode()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"generation": 3, "size": 4, "key": KEY.hex()}


@pytest.mark.parametrize(
    ("line", "port"),
    [
        (b'{"port": 4711}\n', 4711),
        (b'{"port":4711}', 4711),
        (b'a message without an end{"port": 4711}\n', 4711),
        (b"a message\n", None),
        (b'{"port": "4711"}\n', None),
        (b'{"port": 123456}\n', None),
        (b"", None),
        (b"\xff\n", None),
    ],
)
def test_the_port_is_found_behind_what_imports_have_printed(line: bytes, port: int | None) -> None:
    assert read_port(line) == port
