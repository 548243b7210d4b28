"""The real process: generations that follow each other, who is let in, and what is left of all that."""

import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import (
    BARRIER,
    KEY,
    LOOPBACK,
    Client,
    Process,
    connected,
    exchange,
    gathering,
    serving,
    summing,
)
from worker_runtime.coordination import wire
from worker_runtime.coordination.sequencer import server as server_module
from worker_runtime.coordination.sequencer.__main__ import listen
from worker_runtime.coordination.sequencer.orders import Orders
from worker_runtime.coordination.sequencer.server import Server

GENERATIONS = 200
IDLE_SECONDS = 1.0


def is_refused(process: Process, rank: int, generation: int = 1, key: bytes = KEY) -> bool:
    client = Client(process, rank, generation, key)
    with client.socket:
        return client.is_closed()


def test_workers_that_come_before_the_activation_wait_for_it() -> None:
    with Process() as process:
        early = [Client(process, rank, 2) for rank in range(2)]
        outdated, later = Client(process, 0, 1), Client(process, 0, 3)
        process.activate(2, 2)
        for client in early:
            client.await_proof()
        exchange(early)
        assert outdated.is_closed()
        process.activate(3, 1)
        exchange([later.await_proof()])
        for client in (*early, outdated, later):
            client.socket.close()


def test_a_newer_generation_ends_the_former() -> None:
    with serving(2) as (process, former):
        former[0].ask("a", BARRIER)
        process.activate(2, 2)
        assert all(client.is_closed() for client in former)
        with connected(process, 0, 2) as first, connected(process, 1, 2) as second:
            exchange([first, second])
        assert is_refused(process, 0, 1)


def test_a_repeated_or_outdated_order_changes_nothing() -> None:
    with serving(2, generation=5) as (process, clients):
        for generation, size in ((5, 2), (4, 1), (5, 3)):
            process.activate(generation, size)
            exchange(clients)  # so that each order is read by itself
        assert is_refused(process, 0, 4)
        code, errors = process.end()
        assert code == 0
        assert errors.count("was not followed, since generation 5 is served") == 2


@pytest.mark.parametrize(
    ("rank", "generation", "key"),
    [(0, 1, bytes(32)), (2, 1, KEY), (2**32 - 1, 1, KEY), (1, 0, KEY), (0, 1, KEY)],
    ids=["wrong key", "no such rank", "no rank at all", "older generation", "already here"],
)
def test_a_worker_that_does_not_belong_is_turned_away(rank: int, generation: int, key: bytes) -> None:
    with serving(2) as (process, clients):
        assert is_refused(process, rank, generation, key)
        exchange(clients)


def test_a_rank_that_has_left_does_not_come_back() -> None:
    with serving(2) as (process, clients):
        clients[0].leave()
        clients[0].socket.close()
        clients[1].ask("a", BARRIER)
        assert "shut down on rank 0" in clients[1].read_text(wire.Frame.REFUSAL)
        assert is_refused(process, 0)


def test_a_proof_of_another_connection_is_worth_nothing() -> None:
    with Process() as process:
        process.activate(1, 1)
        with process.connect() as first, process.connect() as second:
            challenge = first.recv(wire.NONCE_BYTES)
            second.recv(wire.NONCE_BYTES)
            greeting, _ = wire.make_greeting(KEY, 1, 0, challenge, bytes(32))
            second.sendall(greeting)
            with suppress(ConnectionResetError):
                assert second.recv(1) == b""
        with connected(process, 0) as client:
            exchange([client])


def test_generations_leave_nothing_behind() -> None:
    with Process() as process:
        sizes: list[tuple[int, int]] = []
        for _ in range(GENERATIONS):
            with gathering(process, 2) as clients:
                for client in clients:
                    client.ask("sum", summing(count=4096), bytes(16384))
                    client.ask("pending", BARRIER) if client.rank else client.ask("other", BARRIER)
                for client in clients:
                    assert bytes(client.released().payload) == bytes(16384)
                sizes.append((process.count_files(), process.read_memory_bytes()))
        files, memory = zip(*sizes, strict=True)
        assert files[-1] <= files[5]
        assert memory[-1] - memory[20] < 1_000_000, memory[::20]


def test_the_server_sleeps_while_no_rank_asks() -> None:
    with serving(2) as (process, clients):
        exchange(clients)
        before = process.count_wakeups()
        with pytest.raises(subprocess.TimeoutExpired):  # no event shows that nothing happens
            process.popen.wait(IDLE_SECONDS)
        assert process.count_wakeups() - before <= 1  # it may not have gone to sleep yet after the exchange


@contextmanager
def serving_here() -> Iterator[tuple[int, int]]:
    """A server in a thread of this process; its port, and the descriptor that orders are written to."""
    read, write = os.pipe()
    with listen(LOOPBACK) as listener, ThreadPoolExecutor(1) as pool:
        done = pool.submit(Server(listener, Orders(read), print).run)
        try:
            yield listener.getsockname()[1], write
        finally:
            os.close(write)
            done.result(LIMIT_SECONDS)
            os.close(read)


def test_strangers_are_dropped_by_the_server_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GREETING_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "ACTIVATION_SECONDS", 0.6)
    with serving_here() as (port, _):
        silent, early = (socket.create_connection((LOOPBACK, port), LIMIT_SECONDS) for _ in range(2))
        with silent, early:
            early.sendall(wire.make_greeting(KEY, 1, 0, early.recv(wire.NONCE_BYTES), bytes(32))[0])
            assert len(silent.recv(100)) == wire.NONCE_BYTES
            assert silent.recv(1) == b""
            assert early.recv(1) == b""


def limit_files(process: Process, count: int) -> None:
    _, hard = resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (count, hard))


def test_the_server_continues_when_no_more_files_can_be_opened() -> None:
    with serving(2) as (process, clients), ExitStack() as stack:
        limit_files(process, process.count_files() + 3)
        crowd = [stack.enter_context(process.connect()) for _ in range(10)]
        exchange(clients)
        assert len(crowd[-1].recv(wire.NONCE_BYTES)) == wire.NONCE_BYTES  # the oldest have made room
        exchange(clients)
        limit_files(process, process.count_files() - 3)
        crowd += [stack.enter_context(process.connect()) for _ in range(10)]
        for _ in range(50):
            exchange(clients)
        for peer in crowd:
            peer.close()
        limit_files(process, 100)
        with process.connect() as late:
            assert len(late.recv(wire.NONCE_BYTES)) == wire.NONCE_BYTES
