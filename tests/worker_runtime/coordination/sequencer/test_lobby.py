"""Strangers: how many, for how long, and how much they may say."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.worker_runtime.coordination.sequencer.client import LIMIT_SECONDS
from worker_runtime.coordination import wire
from worker_runtime.coordination.sequencer import server as lobby_module
from worker_runtime.coordination.sequencer.connection import Poller
from worker_runtime.coordination.sequencer.server import ACTIVATION_SECONDS, GREETING_SECONDS, Lobby, Stranger
from worker_runtime.coordination.wire import Greeting


class Door:
    """A lobby, its poller, and a port that leads there."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.lobby = Lobby(self.poller, self._welcome)
        self.greeted: list[tuple[Stranger, Greeting]] = []
        self.is_early = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.peers: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A stranger, who has read its challenge."""
        peer = socket.create_connection(self.server.getsockname(), LIMIT_SECONDS)
        self.peers.append(peer)
        self.lobby.accept(self.server.accept()[0])
        assert len(peer.recv(wire.NONCE_BYTES, socket.MSG_WAITALL)) == wire.NONCE_BYTES
        return peer

    def greet(self, more: bytes = b"") -> socket.socket:
        """A stranger who has greeted, and said more."""
        peer = self.connect()
        peer.sendall(make_greeting() + more)
        self.poller.wait(LIMIT_SECONDS)
        return peer

    def close(self) -> None:
        """End all there is."""
        self.lobby.close()
        for stranger, _ in self.greeted:
            stranger.connection.close()
        for peer in self.peers:
            peer.close()
        self.server.close()

    def _welcome(self, stranger: Stranger, greeting: Greeting) -> bool:
        self.greeted.append((stranger, greeting))
        return self.is_early


@pytest.fixture
def door(poller: Poller) -> Iterator[Door]:
    with closing(Door(poller)) as made:
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


def test_a_greeting_is_passed_on_when_it_is_complete(door: Door) -> None:
    peer, greeting = door.connect(), make_greeting()
    peer.sendall(greeting[:5])
    door.poller.wait(LIMIT_SECONDS)
    assert door.greeted == []
    peer.sendall(greeting[5:])
    door.poller.wait(LIMIT_SECONDS)
    assert [found for _, found in door.greeted] == [wire.read_greeting(greeting)]
    assert door.lobby.find_due() is None


def test_each_is_challenged_anew(door: Door) -> None:
    for _ in range(2):
        door.greet()
    (first, _), (second, _) = door.greeted
    assert first.challenge != second.challenge


def test_nothing_beyond_the_greeting_is_read(door: Door) -> None:
    door.greet(b"more")
    ((stranger, _),) = door.greeted
    assert stranger.connection.receive_bytes(100) == b"more"


@pytest.mark.parametrize("is_early", [False, True])
def test_who_hangs_up_is_forgotten(door: Door, *, is_early: bool) -> None:
    door.is_early = is_early
    peer = door.greet(b"more") if is_early else door.connect()
    assert door.lobby.find_due() is not None
    peer.close()
    door.poller.wait(LIMIT_SECONDS)
    assert door.lobby.find_due() is None


def test_who_is_silent_too_long_is_dropped(door: Door) -> None:
    first, _ = door.connect(), door.connect()
    due = door.lobby.find_due()
    door.lobby.expire(due - 0.001)
    assert is_open(first)
    door.lobby.expire(due)
    assert is_closed(first)


def test_the_oldest_makes_room(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby_module, "MAX_STRANGERS", 2)
    peers = [door.connect() for _ in range(4)]
    assert all(map(is_closed, peers[:2]))
    assert all(map(is_open, peers[2:]))


def test_an_early_one_is_kept_and_shown_again(door: Door) -> None:
    door.is_early = True
    peer = door.greet(b"more")
    door.is_early = False
    door.lobby.welcome_early()
    door.lobby.welcome_early()
    assert len(door.greeted) == 2
    assert is_open(peer)


def test_an_early_one_is_not_kept_for_ever(door: Door) -> None:
    door.is_early = True
    peer = door.connect()
    began = door.lobby.find_due()
    peer.sendall(make_greeting())
    door.poller.wait(LIMIT_SECONDS)
    due = door.lobby.find_due()
    assert due - began == pytest.approx(ACTIVATION_SECONDS - GREETING_SECONDS)
    door.lobby.expire(due)
    assert is_closed(peer)


def test_early_ones_are_few(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby_module, "MAX_EARLY", 2)
    door.is_early = True
    first, *others = (door.greet() for _ in range(3))
    assert is_closed(first)
    assert all(map(is_open, others))


def test_strangers_make_room_before_early_ones(door: Door) -> None:
    door.is_early = True
    early, silent = door.greet(), door.connect()
    assert door.lobby.drop_oldest()
    assert is_closed(silent)
    assert is_open(early)
    assert door.lobby.drop_oldest()
    assert is_closed(early)
    assert not door.lobby.drop_oldest()
