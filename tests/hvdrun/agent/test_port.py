"""A reserved port: free for a worker that asks with SO_REUSEADDR, for none after that."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from hvdrun.agent.spawn import MasterPorts, reserve_port


def find_number(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def listen(port: int, *, reuses: bool = True) -> socket.socket:
    """A socket that listens on the port, as torch's store does."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if reuses:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def test_a_worker_can_listen_on_the_reserved_port() -> None:
    with (
        closing(reserve_port()) as port,
        listen(find_number(port)) as listener,
        socket.create_connection(("127.0.0.1", find_number(port)), timeout=5) as caller,
    ):
        callee, _ = listener.accept()
        callee.close()
        assert caller.recv(1) == b""


def test_no_process_gets_the_reserved_port_by_chance() -> None:
    with closing(reserve_port()) as port, pytest.raises(OSError, match="in use"):
        listen(find_number(port), reuses=False)


def test_a_second_worker_cannot_listen_there_as_well() -> None:
    with closing(reserve_port()) as port, listen(find_number(port)), pytest.raises(OSError, match="in use"):
        listen(find_number(port))


def test_the_port_is_free_again_afterwards() -> None:
    with closing(reserve_port()) as port:
        number = find_number(port)
    listen(number, reuses=False).close()


@pytest.fixture
def ports() -> Iterator[MasterPorts]:
    with closing(MasterPorts("10.0.0.1")) as made:
        yield made


def test_each_round_has_a_port_of_its_own_and_an_order_that_is_repeated_the_same(ports: MasterPorts) -> None:
    first, second = ports.reserve(0), ports.reserve(1)
    assert first != second
    assert (ports.reserve(0), ports.reserve(1)) == (first, second)
    assert ports.list() == [(0, first), (1, second)]


def test_the_last_round_but_one_keeps_its_port_and_the_one_before_it_does_not(ports: MasterPorts) -> None:
    reserved = [ports.reserve(number).port for number in range(3)]
    listen(reserved[0], reuses=False).close()
    for kept in reserved[1:]:
        with pytest.raises(OSError, match="in use"):
            listen(kept, reuses=False)


def test_a_world_is_seen_by_its_listener(ports: MasterPorts) -> None:
    assert not ports.has_listener()
    port = ports.reserve(0).port
    assert not ports.has_listener()
    with listen(port):
        assert ports.has_listener()
