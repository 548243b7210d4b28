"""Runs functions on several ranks, each a process of its own with a real gloo group."""

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self

import cloudpickle

from tests import by_value
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime import devices
from tests.worker_runtime.rank_template import RankProcess, RankTemplate

POOL_SIZE = 3
_PRINT_SECONDS = 0.5  # for the stacks of a rank that hangs


class RankFailedError(AssertionError):
    """A function raised on one rank or more; the text holds the tracebacks."""


class Ranks:
    """Processes that play ranks."""

    def __init__(self, count: int, device: str = devices.CPU, *, share_cards: bool = True) -> None:
        """Start them.

        Args:
            count: how many.
            device: where their tensors may lie.
            share_cards: where there are fewer GPUs, NCCL takes several of them on one.
        """
        self._calls = 0
        template = RankTemplate.find()
        with ExitStack() as ours:
            endpoints = [os.pipe() for _ in range(count)]
            for descriptor in (end for pair in endpoints for end in pair):
                ours.callback(os.close, descriptor)
            self._connections: list[Connection] = []
            self.processes: list[RankProcess] = []
            for rank in range(count):
                own, theirs = Pipe()
                writable = [end for _, end in (endpoints[1:] if rank == 0 else endpoints[:1])]
                variables = devices.describe_rank(device, rank, count) if share_cards else {}
                self.processes.append(template.fork(rank, [theirs.fileno(), endpoints[rank][0], *writable], variables))
                theirs.close()
                self._connections.append(own)

    def run(
        self,
        function: Callable[..., Any],
        *arguments: object,
        size: int = 2,
        limit_seconds: float = LIMIT_SECONDS,
        backend: str = "",
    ) -> list[Any]:
        """Call `function(*arguments)` on ranks 0 to size - 1 of a new world, and return the results by rank.

        The world has a backend of torch's choice, unless one is named.
        """
        module = function.func.__module__ if isinstance(function, partial) else function.__module__
        cloudpickle.register_pickle_by_value(sys.modules[module])
        self._calls += 1
        generation = self._calls * 1000  # of all ranks, though not all take part in every call
        command = by_value.dump((function, arguments, size, generation, backend))
        for connection in self._connections[:size]:
            connection.send_bytes(command)
        deadline = time.monotonic() + limit_seconds
        try:
            outcomes = [self._receive(rank, deadline) for rank in range(size)]
        except BaseException:  # as the time limit of the test: the next one must not get these answers
            self.kill()
            raise
        failures = [f"rank {rank}: {text}" for rank, (succeeded, text) in enumerate(outcomes) if not succeeded]
        if failures:
            self.kill()
            raise RankFailedError("\n".join(failures))
        return [result for _, result in outcomes]

    def _receive(self, rank: int, deadline: float) -> tuple[bool, Any]:
        connection = self._connections[rank]
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            for process in self.processes:
                process.send_signal(signal.SIGQUIT)  # it prints the stacks of its threads
                time.sleep(_PRINT_SECONDS)
            self.kill()
            raise RankFailedError(f"rank {rank} did not finish in time")
        try:
            return cloudpickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            code = self.processes[rank].wait(LIMIT_SECONDS)
            return (False, f"ended with {code}")

    @property
    def are_alive(self) -> bool:
        """Whether none has ended."""
        return all(process.poll() is None for process in self.processes)

    def kill(self) -> None:
        """End all immediately."""
        for process in self.processes:
            process.kill()
            process.wait(LIMIT_SECONDS)

    def close(self) -> list[int]:
        """End the processes as their programs end, and return their exit codes."""
        for connection in self._connections:
            connection.close()
        try:
            return [process.wait(LIMIT_SECONDS) for process in self.processes]
        finally:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RankPool:
    """`Ranks` that are replaced after a test has broken them.

    Args:
        device: where their tensors may lie.
        count: how many there are; more are started when a test needs them.
    """

    def __init__(self, device: str = devices.CPU, count: int = POOL_SIZE) -> None:
        self._device = device
        self._count = count
        self._ranks: Ranks | None = None
        self._backend = ""

    def use_gloo(self) -> None:
        """From now on several ranks use gloo, on whatever device; a rank alone uses what torch has for its device."""
        self._backend = "gloo"

    def run(
        self, function: Callable[..., Any], *arguments: object, size: int = 2, limit_seconds: float = LIMIT_SECONDS
    ) -> list[Any]:
        """As `Ranks.run`."""
        if self._ranks is not None and not (self._ranks.are_alive and size <= len(self._ranks.processes)):
            self.close()
        if self._ranks is None:
            self._ranks = Ranks(max(size, self._count), self._device)
        backend = self._backend if size > 1 else ""
        return self._ranks.run(function, *arguments, size=size, limit_seconds=limit_seconds, backend=backend)

    def close(self) -> None:
        """End the processes; each must end by itself."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            is_whole = ranks.are_alive
            codes = ranks.close()
            assert not (is_whole and any(codes)), "a rank did not end by itself"


class DeviceRanks(RankPool):
    """Ranks of a pool whose functions have their tensors on one device.

    Args:
        pool: where the ranks come from.
        device: where tensors lie whose functions name no device.
        compiles: the functions use torch.compile.
    """

    def __init__(self, pool: RankPool, device: str, *, compiles: bool) -> None:
        super().__init__(device)
        self._pool = pool
        self._compiles = compiles

    def run(
        self, function: Callable[..., Any], *arguments: object, size: int = 2, limit_seconds: float = LIMIT_SECONDS
    ) -> list[Any]:
        """As `Ranks.run`."""
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        called = partial(devices.call, self._device, self._compiles, function)
        return self._pool.run(called, *arguments, size=size, limit_seconds=limit_seconds)


def ask_child(question: Callable[[], object]) -> Any:
    """What a forked child answers, or the error's type and text; for functions that run on ranks, too."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001 - the test is to see it
            answer = type(error).__name__, str(error)
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        result = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(result)  # noqa: S301 - our own child
