"""What an agent and its forkserver, its sequencer and the check of a backend say to each other arrives as it was."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.wire import processes as forking
from rendezvous.wire.processes import (
    LENGTH,
    Activation,
    Forked,
    ForkRequest,
    Message,
    Ready,
    encode_answer,
    read_answer,
    read_port,
)

words = st.binary().map(os.fsdecode)  # whatever an operating system may hold, as Python shows it
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        ForkRequest,
        number=st.integers(),
        executable=words,
        arguments=st.lists(words).map(tuple),
        directory=words,
        environment=st.dictionaries(words, words),
        threads=st.none() | st.integers(),
    ),
    st.builds(Ready, words),
    st.builds(Forked, st.integers(), st.integers()),
)


@given(messages)
def test_an_encoded_message_has_its_length_in_front_and_is_decoded_unchanged(message: Message) -> None:
    data = forking.encode(message)
    assert LENGTH.unpack_from(data) == (len(data) - LENGTH.size,)
    assert forking.decode(data[LENGTH.size :]) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"kind": "Begone"}',
        b'{"kind": "Ready"}',
        b'{"kind": "Ready", "pid": 1}',
        b'{"kind": []}',
    ],
)
def test_a_malformed_request_raises_a_documented_error(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        forking.decode(data)


KEY = bytes(range(32))


def test_an_activation_is_one_line_of_json() -> None:
    line = Activation(3, 4, KEY).encode()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"generation": 3, "size": 4, "key": KEY.hex(), "reports": False}


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


@pytest.mark.parametrize("objection", ["", 'it has no "ucc"; ä {"objection": 1}', "two\nlines"])
@pytest.mark.parametrize("before", [b"", b"an import says\n", b"and more without an end "])
def test_an_answer_is_found_after_other_output(objection: str, before: bytes) -> None:
    assert read_answer(before + encode_answer(objection)) == objection


@pytest.mark.parametrize("output", [b"", b"hello\n", b'{"objection": \n', b'{"objection": x}', b'{"port": 3}\n'])
def test_output_without_an_answer_is_read_as_no_answer(output: bytes) -> None:
    assert read_answer(output) is None
