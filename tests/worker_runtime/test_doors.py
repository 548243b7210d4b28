"""When members cannot connect, they find out who does not reach whom, and all say the same."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, PrefixStore, Store

from worker_runtime import doors
from worker_runtime.doors import Door, UnreachedError, knock

LIMIT_SECONDS = 20.0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Of a generation; what is awaited in vain is so for a moment."""
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 0.3)
    monkeypatch.setattr(doors, "_WAIT", timedelta(seconds=1))
    return PrefixStore("generation", HashStore())


@pytest.fixture
def closed() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def look_all(*members: Door) -> list[str]:
    """What each finds, all at the same time."""

    def look(door: Door) -> str:
        try:
            door.look_who_is_unreached()
        except UnreachedError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(look, members, timeout=LIMIT_SECONDS))


def test_where_all_reach_each_other_nobody_is_named(store: Store) -> None:
    with Door(store, 0, 2, "127.0.0.1", LIMIT_SECONDS) as one, Door(store, 1, 2, "localhost", LIMIT_SECONDS) as other:
        assert look_all(one, other) == ["", ""]


def test_who_has_not_come_is_not_waited_for(store: Store) -> None:
    with Door(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as one:
        assert look_all(one) == [""]


def test_all_tell_who_does_not_reach_whom(store: Store, closed: int) -> None:
    with (
        Door(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as first,
        Door(store, 1, 3, "127.0.0.1", LIMIT_SECONDS) as second,
    ):
        store.set("door/2", f"{closed} 10.0.0.3")
        store.set("unreached/2", "0")
        told = look_all(first, second)
    assert told == ["rank 2 does not reach rank 0 on 127.0.0.1"] * 2  # who has told may have left


def test_who_has_not_failed_yet_tells_what_it_has_found_when_the_limit_is_over(store: Store, closed: int) -> None:
    store.set("door/2", f"{closed} 127.0.0.1")
    with Door(store, 1, 3, "127.0.0.1", 0.1), Door(store, 0, 3, "127.0.0.1", LIMIT_SECONDS) as other:
        (told,) = look_all(other)
    assert told == "rank 0 does not reach rank 2 on 127.0.0.1, rank 1 does not reach rank 2 on 127.0.0.1"


def test_a_door_that_does_not_open_is_told_with_its_address(store: Store, closed: int) -> None:
    with Door(store, 0, 2, "127.0.0.1", LIMIT_SECONDS) as one:
        store.set("door/1", f"{closed} 127.0.0.1")
        assert look_all(one) == ["rank 0 does not reach rank 1 on 127.0.0.1"]
    assert store.get("unreached/0") == b"1"


def test_neither_does_one_at_an_address_that_is_none_or_behind_a_wall(store: Store) -> None:
    del store
    with socket.socket() as wall:  # takes one connection, and lets the next ones wait
        wall.bind(("127.0.0.1", 0))
        wall.listen(0)
        with socket.create_connection(wall.getsockname()):
            port = wall.getsockname()[1]
            assert knock({3: ("127.0.0.1", port), 1: ("no-such-host.invalid", 1), 2: ("", 0)}) == [1, 2, 3]


def test_of_many_pairs_some_are_named() -> None:
    pairs = tuple((rank, 9) for rank in range(7))
    error = UnreachedError(pairs, {9: "10.0.0.9"})
    assert error.pairs == pairs
    assert str(error).startswith("rank 0 does not reach rank 9 on 10.0.0.9, rank 1 ")
    assert str(error).endswith("rank 3 does not reach rank 9 on 10.0.0.9, and so on for 3 more")


def test_a_door_is_closed_with_the_generation_and_where_it_cannot_open(store: Store) -> None:
    with Door(store, 0, 2, "127.0.0.1", LIMIT_SECONDS):
        port = int(store.get("door/0").split()[0])
        assert knock({0: ("127.0.0.1", port)}) == []
    assert knock({0: ("127.0.0.1", port)}) == [0]
    with pytest.raises(OSError, match="assign"):
        Door(store, 0, 2, "192.0.2.1", LIMIT_SECONDS)
