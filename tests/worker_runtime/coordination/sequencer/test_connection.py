"""Frames over a socket: whole ones, pieces, too long ones; and what is sent faster than it is read."""

import socket
import threading
from contextlib import suppress

import pytest

from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import Process, gathering
from tests.worker_runtime.coordination.sequencer.ends import Ends
from worker_runtime.coordination.ordering.requests import Kind, Signature
from worker_runtime.coordination.sequencer import connection as connection_module
from worker_runtime.coordination.sequencer.connection import WRITE, ConnectionEndedError
from worker_runtime.coordination.wire import HEADER, MAX_FRAME_BYTES, Frame, ProtocolError, Released, encode_frame

BODIES = [b"", b"a", b"bc" * 40, b"d" * 300_000]
FRAMES = b"".join(encode_frame(Frame.REQUESTS, body) for body in BODIES)


def receive(ends: Ends, count: int) -> list[bytes]:
    """So many bodies."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        assert ends.wait()
        bodies += [data[start:end] for _, data, start, end in ends.connection.receive()]
    return bodies


def test_frames_arrive_as_they_were_sent(ends: Ends) -> None:
    ends.peer.sendall(FRAMES)
    assert receive(ends, len(BODIES)) == BODIES


@pytest.mark.parametrize("piece_bytes", [1, 3, 7])
def test_frames_arrive_however_they_are_cut(ends: Ends, piece_bytes: int) -> None:
    data = FRAMES[:150]
    bodies: list[bytes] = []
    for start in range(0, len(data), piece_bytes):
        ends.peer.sendall(data[start : start + piece_bytes])
        ends.wait()
        bodies += [data[start:end] for _, data, start, end in ends.connection.receive()]
    assert bodies == BODIES[:3]


def test_a_read_without_data_returns_no_bytes(ends: Ends) -> None:
    assert ends.connection.receive_bytes(10) == b""


def test_a_frame_that_is_announced_too_long_is_refused_before_it_comes(ends: Ends) -> None:
    ends.peer.sendall(HEADER.pack(MAX_FRAME_BYTES + 1, Frame.REQUESTS))
    ends.wait()
    with pytest.raises(ProtocolError, match=f"longer than {MAX_FRAME_BYTES}"):
        ends.connection.receive()


def test_the_end_of_a_connection_raises(ends: Ends) -> None:
    ends.peer.close()
    ends.wait()
    with pytest.raises(ConnectionEndedError, match=r"^ended$"):
        ends.connection.receive()


def test_the_end_in_the_middle_of_a_message_raises(ends: Ends) -> None:
    ends.peer.sendall(FRAMES[:-1])
    ends.peer.close()
    assert receive(ends, len(BODIES) - 1) == BODIES[:-1]
    with pytest.raises(ConnectionEndedError, match="ended in the middle of a message"):
        receive(ends, 1)


def test_a_broken_connection_raises(ends: Ends) -> None:
    ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ends.peer.close()
    ends.wait()
    with pytest.raises(ConnectionEndedError, match=r"broke: .*reset"):
        ends.connection.receive()
    with pytest.raises(ConnectionEndedError, match="broke"):
        ends.connection.send(b"x")


def drain(ends: Ends) -> bytes:
    """All that is sent until "end"."""
    received = bytearray()
    while not received.endswith(b"end"):
        received += ends.peer.recv(1 << 20)
        if ends.wait(0) & WRITE:
            ends.connection.send_more()
    return bytes(received)


def test_unread_data_is_sent_later_and_in_order(ends: Ends) -> None:
    data = bytes(range(256)) * 40_000
    ends.connection.send(data)
    ends.connection.send(b"end")
    assert drain(ends) == data + b"end"
    assert ends.wait(0) == 0, "it still waits to send what it has sent"


def test_a_rank_that_reads_in_the_end_may_be_sent_any_amount(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_UNSENT_BYTES", 20_000_000)
    for _ in range(4):
        ends.connection.send(bytes(15_000_000) + b"end")
        assert len(drain(ends)) == 15_000_003


def test_a_rank_that_reads_too_slowly_is_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_UNSENT_BYTES", 20_000_000)
    ends.connection.send(bytes(10_000_000))
    with pytest.raises(ConnectionEndedError, match=r"left \d+ bytes of responses unread"):
        ends.connection.send(bytes(20_000_000))


def test_a_slow_reader_keeps_no_other_waiting_and_is_lost_in_the_end(process: Process) -> None:
    """Rank 1 is sent some 300 MB and reads none of it; rank 0 reads, and its responses continue."""
    payload = bytes(1024 * 1024)
    broadcast = Signature(Kind.BROADCAST, ("uint8",), ((len(payload),),), root=0, payload_dtype="float64")
    with gathering(process, 2) as (first, slow):
        slow.declare(broadcast)
        first.declare(broadcast)
        asked = b"".join(slow.encode(str(number), broadcast) for number in range(400))
        slow.send(Frame.REQUESTS, asked)

        def send() -> None:
            with suppress(OSError):
                for number in range(400):
                    first.send(Frame.REQUESTS, first.encode(str(number), broadcast, payload))

        first.count(400)
        sender = threading.Thread(target=send)
        sender.start()
        released = 0
        while isinstance((response := first.response()[1]), Released):
            released += 1
            assert len(response.payload) == len(payload)
        assert released > 200
        assert "rank 1 was cut off: its connection to the sequencer was closed: it left" in str(response)
        first.socket.shutdown(socket.SHUT_RDWR)
        sender.join(LIMIT_SECONDS)
        assert not sender.is_alive()
