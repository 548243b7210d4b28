"""Only a group's own connections are found and ended, and members that cannot connect find out why."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore, PrefixStore, Store

from tests.waiting import LIMIT_SECONDS, wait_until
from worker_runtime.groups import gloo, reachability
from worker_runtime.groups.gloo import Connections, drop_packets, find_listener, list_connections, list_sockets
from worker_runtime.groups.reachability import Reachability, UnreachedError, probe

Own = tuple[Connections, socket.socket, socket.socket]


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """A listener, and the two ends of a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
        listener.accept()[0] as other,
    ):
        yield listener, one, other


@pytest.fixture
def group() -> Iterator[Own]:
    """The connections of a group of two that this process plays alone, and their two ends."""
    present = list_sockets()
    with connected() as (_, one, other):
        yield Connections.of(list_connections(present, 0)), one, other


def say(segments: int, milliseconds: int) -> SimpleNamespace:
    """In place of the struct by which the kernel's words on every connection are read."""
    return SimpleNamespace(size=60, unpack=lambda _: (segments, milliseconds))


def carries(one: socket.socket, other: socket.socket) -> bool:
    """Whether what is sent at one end arrives at the other."""
    one.sendall(b"x")
    return other.recv(1) == b"x"


def test_a_silenced_listener_answers_no_peer_and_its_connections_live_on() -> None:
    present = list_sockets()
    with connected() as (listener, one, other), find_listener(present) or pytest.fail("not found") as found:
        drop_packets(found)
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), 0.3)
        assert carries(one, other)


def test_two_new_listeners_are_ambiguous_and_no_listener_is_found() -> None:
    present = list_sockets()
    with connected(), connected():
        assert find_listener(present) is None


def test_connections_that_appeared_are_ended_and_older_ones_and_listeners_are_not() -> None:
    with connected() as (_, old, old_peer):
        present, pair = list_sockets(), socket.socketpair()
        with connected() as (listener, one, other), pair[0], pair[1]:
            Connections.of(list_connections(present, 0)).shut_down()
            assert one.recv(1) == other.recv(1) == b""
            assert carries(old, old_peer)
            assert carries(*pair)
            with socket.create_connection(listener.getsockname()):
                listener.accept()[0].close()


def test_both_ends_of_a_connection_and_the_arrivals_at_a_listener_are_known() -> None:
    present = list_sockets()
    with connected() as (listener, one, other):
        one.sendall(b"12345678")
        port = listener.getsockname()[1]
        far, near = (f"{each.getsockname()[0]}:{each.getsockname()[1]}" for each in (one, other))
        wait_until(lambda: other.recv(8, socket.MSG_PEEK) == b"12345678")
        found = {(each.own, each.other, each.received) for each in list_connections(present, port)}
        assert found == {(far, near, None), (near, far, 8)}


def test_a_reused_descriptor_is_left_alone(group: Own) -> None:
    connections, one, other = group
    numbers = one.fileno(), other.fileno()
    one.close()
    other.close()
    with connected() as second:
        assert set(numbers) & {each.fileno() for each in second}
        connections.shut_down()
        assert carries(*second[1:])


def test_a_peer_that_does_not_read_is_not_silent(group: Own) -> None:
    """The peer's kernel acknowledges for it, and continues to announce an empty receive window."""
    connections, one, _ = group
    one.settimeout(0.2)
    with pytest.raises(TimeoutError):
        one.sendall(bytes(1 << 25))
    time.sleep(0.5)  # several probes of the kernel's
    assert connections.find_silent(0.3) == ""


def test_a_peer_that_acknowledges_nothing_is_named(group: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "_UNACKNOWLEDGED", say(2, 5001))
    assert group[0].find_silent(5.0) == "127.0.0.1"
    assert group[0].find_silent(5.1) == ""
    monkeypatch.setattr(gloo, "_UNACKNOWLEDGED", say(0, 60_000))  # nothing was sent
    assert group[0].find_silent(5.0) == ""


def test_no_descriptor_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
    with connected():
        Connections.of(list_connections(list_sockets(), 0)).shut_down()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - only their number counts


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Of a generation; what is awaited in vain is so for a moment."""
    monkeypatch.setattr(reachability, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(reachability, "_WAIT", timedelta(seconds=1))
    return PrefixStore("generation", HashStore())


@pytest.fixture
def closed() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def look_all(*members: Reachability) -> list[str]:
    """What each finds, all at the same time."""

    def look(member: Reachability) -> str:
        try:
            member.raise_unreached()
        except UnreachedError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(look, members, timeout=LIMIT_SECONDS))


def test_ranks_that_all_reach_each_other_are_not_named(store: Store) -> None:
    with (
        Reachability(store, 0, 2, "127.0.0.1", LIMIT_SECONDS) as one,
        Reachability(store, 1, 2, "localhost", LIMIT_SECONDS) as other,
    ):
        assert look_all(one, other) == ["", ""]


def test_a_rank_that_has_not_come_is_not_waited_for(store: Store) -> None:
    with Reachability(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as one:
        assert look_all(one) == [""]


def test_all_ranks_name_the_pairs_that_do_not_reach_each_other(store: Store, closed: int) -> None:
    with (
        Reachability(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as first,
        Reachability(store, 1, 3, "127.0.0.1", LIMIT_SECONDS) as second,
    ):
        store.set("listener/2", f"{closed} 10.0.0.3")
        store.set("unreached/2", "0")
        reported = look_all(first, second)
    assert reported == ["rank 2 cannot reach rank 0 on 127.0.0.1"] * 2  # the rank that has reported may have left


def test_a_rank_that_has_not_failed_reports_its_findings_when_the_limit_is_over(store: Store, closed: int) -> None:
    store.set("listener/2", f"{closed} 127.0.0.1")
    with Reachability(store, 1, 3, "127.0.0.1", 0.1), Reachability(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as other:
        (reported,) = look_all(other)
    assert reported == "rank 0 cannot reach rank 2 on 127.0.0.1, rank 1 cannot reach rank 2 on 127.0.0.1"


def test_a_listener_that_does_not_answer_is_reported_with_its_address(store: Store, closed: int) -> None:
    with Reachability(store, 0, 2, "127.0.0.1", LIMIT_SECONDS) as one:
        store.set("listener/1", f"{closed} 127.0.0.1")
        assert look_all(one) == ["rank 0 cannot reach rank 1 on 127.0.0.1"]
    assert store.get("unreached/0") == b"1"


def test_an_address_that_does_not_exist_or_is_behind_a_wall_is_reported(store: Store) -> None:
    del store
    with socket.socket() as wall:  # takes one connection, and lets the next ones wait
        wall.bind(("127.0.0.1", 0))
        wall.listen(0)
        with socket.create_connection(wall.getsockname()):
            port = wall.getsockname()[1]
            assert probe({3: ("127.0.0.1", port), 1: ("no-such-host.invalid", 1), 2: ("", 0)}) == [1, 2, 3]


def test_of_many_pairs_some_are_named() -> None:
    pairs = tuple((rank, 9) for rank in range(7))
    error = UnreachedError(pairs, {9: "10.0.0.9"})
    assert str(error).startswith("rank 0 cannot reach rank 9 on 10.0.0.9, rank 1 ")
    assert str(error).endswith("rank 3 cannot reach rank 9 on 10.0.0.9, and 3 more")


def test_a_listener_is_closed_at_the_end_of_its_generation_and_an_unusable_address_raises(store: Store) -> None:
    with Reachability(store, 0, 2, "127.0.0.1", LIMIT_SECONDS):
        port = int(store.get("listener/0").split()[0])
        assert probe({0: ("127.0.0.1", port)}) == []
    assert probe({0: ("127.0.0.1", port)}) == [0]
    with pytest.raises(OSError, match="assign"):
        Reachability(store, 0, 2, "192.0.2.1", LIMIT_SECONDS)
