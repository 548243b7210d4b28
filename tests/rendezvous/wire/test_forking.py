"""What agent and forkserver say to each other arrives as it was."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.wire import forking
from rendezvous.wire.forking import LENGTH, Forked, ForkRequest, Message, Ready

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
def test_a_message_arrives_as_it_was_with_its_length_before_it(message: Message) -> None:
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
def test_what_is_none_of_ours_is_refused_in_a_documented_way(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        forking.decode(data)
