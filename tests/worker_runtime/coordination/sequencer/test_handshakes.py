"""Handshakes: how many, for how long, and how much they may say."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.waiting import LIMIT_SECONDS
from worker_runtime.coordination import wire
from worker_runtime.coordination.sequencer import server as server_module
from worker_runtime.coordination.sequencer.connection import Poller
from worker_runtime.coordination.sequencer.server import ACTIVATION_SECONDS, GREETING_SECONDS, Handshake, Handshakes
from worker_runtime.coordination.wire import Greeting


class Port:
    """Handshakes, their poller, and a port that leads there."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.handshakes = Handshakes(self.poller, self._decide)
        self.greeted: list[tuple[Handshake, Greeting]] = []
        self.is_early = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.peers: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A peer that has read its challenge."""
        peer = socket.create_connection(self.server.getsockname(), LIMIT_SECONDS)
        self.peers.append(peer)
        self.handshakes.accept(self.server.accept()[0])
        assert len(peer.recv(wire.NONCE_BYTES, socket.MSG_WAITALL)) == wire.NONCE_BYTES
        return peer

    def greet(self, more: bytes = b"") -> socket.socket:
        """A peer that has sent a greeting, and more."""
        peer = self.connect()
        peer.sendall(make_greeting() + more)
        self.poller.wait(LIMIT_SECONDS)
        return peer

    def close(self) -> None:
        """End all there is."""
        self.handshakes.close()
        for handshake, _ in self.greeted:
            handshake.connection.close()
        for peer in self.peers:
            peer.close()
        self.server.close()

    def _decide(self, handshake: Handshake, greeting: Greeting) -> bool:
        self.greeted.append((handshake, greeting))
        return self.is_early


@pytest.fixture
def port(poller: Poller) -> Iterator[Port]:
    with closing(Port(poller)) as made:
        yield made


def make_greeting() -> bytes:
    return wire.make_greeting(bytes(32), 1, 0, bytes(32), bytes(32))[0]


def is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(peer: socket.socket) -> bool:
    peer.settimeout(0)
    try:
        peer.recv(1)
    except BlockingIOError:
        return True
    finally:
        peer.settimeout(LIMIT_SECONDS)
    return False


def test_a_greeting_in_pieces_is_passed_on_once_it_is_complete(port: Port) -> None:
    peer, greeting = port.connect(), make_greeting()
    peer.sendall(greeting[:5])
    port.poller.wait(LIMIT_SECONDS)
    assert port.greeted == []
    peer.sendall(greeting[5:])
    port.poller.wait(LIMIT_SECONDS)
    assert [found for _, found in port.greeted] == [wire.read_greeting(greeting)]
    assert port.handshakes.find_due() is None


def test_each_connection_is_challenged_anew(port: Port) -> None:
    for _ in range(2):
        port.greet()
    (first, _), (second, _) = port.greeted
    assert first.challenge != second.challenge


def test_bytes_beyond_the_greeting_are_not_read(port: Port) -> None:
    port.greet(b"more")
    ((handshake, _),) = port.greeted
    assert handshake.connection.receive_bytes(100) == b"more"


@pytest.mark.parametrize("is_early", [False, True])
def test_a_peer_that_hangs_up_is_forgotten(port: Port, *, is_early: bool) -> None:
    port.is_early = is_early
    peer = port.greet(b"more") if is_early else port.connect()
    assert port.handshakes.find_due() is not None
    peer.close()
    port.poller.wait(LIMIT_SECONDS)
    assert port.handshakes.find_due() is None


def test_a_peer_that_is_silent_too_long_is_dropped(port: Port) -> None:
    first, _ = port.connect(), port.connect()
    due = port.handshakes.find_due()
    port.handshakes.expire(due - 0.001)
    assert is_open(first)
    port.handshakes.expire(due)
    assert is_closed(first)


def test_the_oldest_silent_connections_make_room(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_SILENT", 2)
    peers = [port.connect() for _ in range(4)]
    assert all(map(is_closed, peers[:2]))
    assert all(map(is_open, peers[2:]))


def test_an_early_greeting_is_kept_and_shown_again(port: Port) -> None:
    port.is_early = True
    peer = port.greet(b"more")
    port.is_early = False
    port.handshakes.retry_early()
    port.handshakes.retry_early()
    assert len(port.greeted) == 2
    assert is_open(peer)


def test_an_early_greeting_is_not_kept_for_ever(port: Port) -> None:
    port.is_early = True
    peer = port.connect()
    began = port.handshakes.find_due()
    peer.sendall(make_greeting())
    port.poller.wait(LIMIT_SECONDS)
    due = port.handshakes.find_due()
    assert due - began == pytest.approx(ACTIVATION_SECONDS - GREETING_SECONDS)
    port.handshakes.expire(due)
    assert is_closed(peer)


def test_few_early_greetings_are_kept(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_EARLY", 2)
    port.is_early = True
    first, *others = (port.greet() for _ in range(3))
    assert is_closed(first)
    assert all(map(is_open, others))


def test_silent_handshakes_are_dropped_before_early_greetings(port: Port) -> None:
    port.is_early = True
    early, silent = port.greet(), port.connect()
    assert port.handshakes.drop_oldest()
    assert is_closed(silent)
    assert is_open(early)
    assert port.handshakes.drop_oldest()
    assert is_closed(early)
    assert not port.handshakes.drop_oldest()
