"""The generation's store: keys and values of members, and whether their connections lead to each other."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from rendezvous.core.model import Endpoint
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import KEY, LOOPBACK, Client, Process, serving
from worker_runtime.coordination import wire
from worker_runtime.coordination.sequencer.store import Ends, match_ends
from worker_runtime.coordination.store import SequencerStore
from worker_runtime.coordination.wire import StoreFrame

LIMIT = timedelta(seconds=LIMIT_SECONDS)
A, B, C, STRANGER = "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "10.9.9.9:9"


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    """Serves a generation of two."""
    with Process() as process:
        process.begin(2)
        yield process


def open_store(process: Process, rank: int = 0, key: bytes = KEY) -> SequencerStore:
    return SequencerStore(Endpoint(LOOPBACK, process.port), key, process.generation, rank, LIMIT)


def test_a_value_reaches_waiting_and_later_readers(process: Process) -> None:
    first, second = open_store(process, 0), open_store(process, 1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(second.wait, ["one", "two"], LIMIT)
        first.set("one", b"1" * 100_000)
        assert not first.check(["one", "two"])  # from another thread than the one that waits
        first.set("two", "")
        waiting.result(LIMIT_SECONDS)
    assert (second.get("one"), second.get("two")) == (b"1" * 100_000, b"")
    assert second.check(["one", "two"])
    for store in (first, second):
        store.disconnect()


def test_a_wait_has_a_limit_and_leaves_nothing_behind(process: Process) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
    store = open_store(process)
    with pytest.raises(RuntimeError, match=r"^the other members did not answer within 0\.0[0-9]+ s$"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set("never", b"x")
    assert store.get("never") == b"x"  # not what was asked before
    store.disconnect()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - only their number counts


def test_keys_that_are_awaited_together_share_one_limit(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    store, limits = open_store(process), []

    def ask(_kind: StoreFrame, _key: bytes, limit: timedelta) -> bytes:
        limits.append(limit)
        time.sleep(0.01)
        return b""

    monkeypatch.setattr(store, "_ask", ask)
    store.wait(["one", "two", "three"], LIMIT)
    assert LIMIT >= limits[0] > limits[1] > limits[2]


def test_a_waiting_reader_is_woken_when_the_store_is_no_longer_needed(process: Process) -> None:
    store, begun = open_store(process), threading.Event()

    def wait() -> None:
        store.check(["here"])
        begun.set()
        store.get("nowhere")

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait)
        assert begun.wait(LIMIT_SECONDS)
        store.cancel()
        assert isinstance(waiting.exception(LIMIT_SECONDS), RuntimeError)
    with pytest.raises(RuntimeError, match="cannot reach"):
        store.set("key", b"value")


def test_a_client_without_the_key_is_not_served(process: Process) -> None:
    with pytest.raises(RuntimeError, match="cannot reach"):
        open_store(process, key=bytes(wire.KEY_BYTES)).set("key", b"value")


@pytest.mark.parametrize(
    "frame",
    [
        wire.encode_frame(wire.StoreFrame.SET, b"\xff\xff\xff\xff"),
        wire.encode_frame(wire.StoreFrame.COMPARE, b'["group", 3, 2, []]'),
        wire.encode_frame(wire.StoreFrame.COMPARE, b'["group", 0, 2, [1]]'),
        wire.encode_frame(wire.StoreFrame.RESPONSE),
    ],
    ids=["no key", "no member", "no connections", "no request"],
)
def test_a_client_that_breaks_the_rules_is_cut_off_alone(process: Process, frame: bytes) -> None:
    client = Client(process, wire.STORE_ROLE, process.generation).await_proof()
    with client.socket:
        client.socket.sendall(frame)
        assert client.is_closed()
    store = open_store(process)
    assert not store.check(["nothing"])
    store.disconnect()


def test_a_store_ends_with_its_generation() -> None:
    with serving(2) as (process, _):
        former = open_store(process)
        former.set("key", b"value")
        assert former.get("key") == b"value"
        process.begin(2)
        later = open_store(process)
        assert not later.check(["key"])
        with pytest.raises(RuntimeError, match="broke"):
            former.check(["key"])
        later.disconnect()


FROM_A, AT_B = (A, B, None), (B, A, 8)  # a connection of one member's to the listener of another


@pytest.mark.parametrize(
    ("members", "stranger", "matched"),
    [
        ({0: [FROM_A], 1: [AT_B]}, "", {0: [0], 1: [0]}),
        ({0: [FROM_A], 1: [(B, A, 0)]}, "", {0: [0], 1: [0]}),  # the kernel does not count what has come
        ({0: []}, "", {0: []}),
        ({0: [FROM_A], 1: None}, "", {0: [], 1: []}),
        ({0: [(A, STRANGER, None), FROM_A], 1: [(B, STRANGER, 7), AT_B]}, "", {0: [1], 1: [1]}),  # no harm
        ({0: [FROM_A, (A, C, None)], 1: [AT_B, (C, A, None)]}, "", {0: [0], 1: [0]}),  # another thread's
        ({0: [FROM_A], 1: [(B, STRANGER, 8), AT_B]}, f"of member 1 from {B} to {STRANGER} leads to", {0: [0], 1: [1]}),
        ({0: [FROM_A, AT_B], 1: []}, f"of member 0 from {B} to {A} leads to no other", {0: [], 1: []}),
        ({0: [FROM_A], 1: []}, "member 0 is connected to 0 of the 1 other members", {0: [], 1: []}),
        (
            {0: [FROM_A, (A, C, None)], 1: [AT_B, (C, A, 8)], 2: []},
            "member 0 is connected to 1 of the 2 other members",
            {0: [0, 1], 1: [0, 1], 2: []},
        ),
    ],
)
def test_connections_between_members_are_distinguished_from_a_stranger_s(
    members: dict[int, Ends | None], stranger: str, matched: dict[int, list[int]]
) -> None:
    found, indexes = match_ends(members)
    assert stranger in found
    assert bool(stranger) == bool(found)
    assert indexes == matched


def test_all_members_learn_of_the_same_stranger_and_each_of_its_own_end(process: Process) -> None:
    stores = [open_store(process, rank) for rank in range(2)]
    for said in (0, 8):
        ends = [[FROM_A], [(B, STRANGER, said), AT_B]]
        with ThreadPoolExecutor() as threads:
            asked = [threads.submit(stores[rank].compare, f"{said}", rank, 2, ends[rank], LIMIT) for rank in range(2)]
            (one, first), (two, second) = (each.result(LIMIT_SECONDS) for each in asked)
        assert one == two
        assert bool(one) == bool(said)
        assert (first, second) == ([0], [1])
    for store in stores:
        store.disconnect()
