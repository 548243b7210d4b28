"""Only a group's own connections are found and ended."""

import contextlib
import os
import socket
import time

import pytest

from worker_runtime import connections as connections_module
from worker_runtime.connections import Connections, list_sockets, shut_down_to


class Said:
    """What the kernel tells of every connection."""

    size = 60

    def __init__(self, segments: int, milliseconds: int) -> None:
        self.said = segments, milliseconds

    def unpack(self, _: bytes) -> tuple[int, int]:
        """As a struct's."""
        return self.said


def connect() -> tuple[socket.socket, socket.socket, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    return listener, one, other


def test_connections_that_appeared_are_ended_and_older_ones_and_listeners_are_not() -> None:
    old_listener, old, old_peer = connect()
    present = list_sockets()
    listener, one, other = connect()
    pair = socket.socketpair()
    with old_listener, old, old_peer, listener, one, other, pair[0], pair[1]:
        connections = Connections.appeared_since(present, expected=2, store_port=0)
        connections.shut_down()
        assert one.recv(1) == other.recv(1) == b""
        old.sendall(b"x")
        assert old_peer.recv(1) == b"x"
        pair[0].sendall(b"x")
        assert pair[1].recv(1) == b"x"
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()


def test_when_a_stranger_connects_meanwhile_nothing_is_taken() -> None:
    present = list_sockets()
    listener, one, other = connect()
    with listener, one, other:
        Connections.appeared_since(present, expected=1, store_port=0).shut_down()
        one.sendall(b"x")
        assert other.recv(1) == b"x"


def test_connections_to_one_port_are_ended_and_those_to_others_and_older_ones_are_not() -> None:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        listener, old, _ = (enter(each) for each in connect())
        stranger, other, _ = (enter(each) for each in connect())
        present = list_sockets()
        port = listener.getsockname()[1]
        one = enter(socket.create_connection(listener.getsockname()))
        peer = enter(listener.accept()[0])
        second = enter(socket.create_connection(stranger.getsockname()))
        unconnected = enter(socket.socket())
        shut_down_to(port, present)
        assert one.recv(1) == peer.recv(1) == b""
        for each in (old, other, second):
            each.sendall(b"x")
        unconnected.connect(stranger.getsockname())


def test_a_reused_descriptor_is_left_alone() -> None:
    present = list_sockets()
    listener, one, other = connect()
    with listener:
        connections = Connections.appeared_since(present, expected=2, store_port=0)
        numbers = one.fileno(), other.fileno()
        one.close()
        other.close()
        second = connect()
        with second[0], second[1], second[2]:
            assert set(numbers) & {each.fileno() for each in second}
            connections.shut_down()
            second[1].sendall(b"x")
            assert second[2].recv(1) == b"x"


def test_a_peer_that_does_not_read_is_not_silent() -> None:
    """Its kernel acknowledges for it, and goes on to say that it takes no more."""
    present = list_sockets()
    listener, one, other = connect()
    with listener, one, other:
        connections = Connections.appeared_since(present, expected=2, store_port=0)
        one.settimeout(0.2)
        with pytest.raises(TimeoutError):
            one.sendall(bytes(1 << 25))
        time.sleep(0.5)  # several probes of the kernel's
        assert connections.find_silent(0.3) == ""


def test_who_acknowledges_nothing_of_what_was_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    present = list_sockets()
    listener, one, other = connect()
    with listener, one, other:
        connections = Connections.appeared_since(present, expected=2, store_port=0)
        monkeypatch.setattr(connections_module, "_UNACKNOWLEDGED", Said(2, 5001))
        assert connections.find_silent(5.0) == "127.0.0.1"
        assert connections.find_silent(5.1) == ""
        monkeypatch.setattr(connections_module, "_UNACKNOWLEDGED", Said(0, 60_000))  # nothing was sent
        assert connections.find_silent(5.0) == ""
        connections.forget()


def test_forgotten_connections_are_left_alone() -> None:
    present = list_sockets()
    listener, one, other = connect()
    with listener, one, other:
        connections = Connections.appeared_since(present, expected=2, store_port=0)
        connections.forget()
        connections.shut_down()
        one.sendall(b"x")
        assert other.recv(1) == b"x"


def test_no_descriptor_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    listener, one, other = connect()
    with listener, one, other:
        Connections.appeared_since({}, expected=2, store_port=0).shut_down()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - a count


def test_connections_of_the_store_are_not_the_groups() -> None:
    present = list_sockets()
    listener, one, other = connect()
    store, client, accepted = connect()
    with listener, one, other, store, client, accepted:
        Connections.appeared_since(present, expected=2, store_port=store.getsockname()[1]).shut_down()
        assert one.recv(1) == b""
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"
