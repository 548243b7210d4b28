"""A stream is cut into the messages that it was made of."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.errors import WireError
from rendezvous.wire import codec
from tests.rendezvous.wire.messages import agent_messages, orders, unframe


@given(st.lists(st.binary(max_size=40)), st.data())
def test_frames_arrive_whole_in_whatever_chunks_they_come(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(codec.frame, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader = codec.FrameReader()
    arrived = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]
    assert arrived == frames


def test_a_frame_is_complete_with_its_last_byte() -> None:
    reader = codec.FrameReader()
    frame = codec.frame(b"abc")
    assert list(reader.feed(frame[:-1])) == []
    assert list(reader.feed(frame[-1:])) == [b"abc"]


def test_a_frame_that_is_too_long_is_refused_by_its_length() -> None:
    reader = codec.FrameReader()
    with pytest.raises(WireError, match=f"a frame of {codec.MAX_FRAME_BYTES + 1} bytes"):
        list(reader.feed((codec.MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(WireError):  # and what comes after it is not taken for a frame
        list(reader.feed(codec.frame(b"abc")))


def test_frames_before_one_that_is_too_long_are_complete() -> None:
    arrived: list[bytes] = []
    with pytest.raises(WireError):
        arrived.extend(codec.FrameReader().feed(codec.frame(b"abc") + b"HTTP/1.1 400 Bad Request"))
    assert arrived == [b"abc"]


DECODERS = pytest.mark.parametrize("decode", [codec.decode_order, codec.decode_agent_message])


def decode_or_refuse(decode: Callable[[bytes], object], data: bytes) -> None:
    """Either it is a message, or an error of the wire."""
    try:
        decode(data)
    except WireError as error:
        assert "does not speak hvdrun's protocol" in str(error)  # noqa: PT017 - bytes at random may be a message


@DECODERS
@given(data=st.binary())
def test_garbage_raises_wire_error(decode: Callable[[bytes], object], data: bytes) -> None:
    decode_or_refuse(decode, data)


@DECODERS
@given(frame=orders.map(codec.encode_order) | agent_messages.map(codec.encode_agent_message), data=st.data())
def test_a_damaged_message_raises_wire_error(
    decode: Callable[[bytes], object], frame: bytes, data: st.DataObject
) -> None:
    message = bytearray(unframe(frame))
    for _ in range(data.draw(st.integers(1, 3)) if message else 0):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(decode, bytes(message))
