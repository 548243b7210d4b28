"""A world in one process: each rank is a thread, the sequencer's rules are the true ones, and so is gloo.

It shows what a real world does not let a test see: who asked for what and when, and what is in flight.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np

from tests.worker_runtime.groups.backends.stubs import LIMIT, run_members
from worker_runtime.collectives.agreements import CommitRound, Failed, Join
from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering import requests
from worker_runtime.coordination.ordering.ordering import Ordering
from worker_runtime.coordination.ordering.requests import (
    Kind,
    Reduction,
    Refusal,
    Release,
    Request,
    Signature,
)
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.errors import DeadlockError, HorovodInternalError, OperationRefusedError
from worker_runtime.groups.torch_groups import TorchGroup

LIMIT_SECONDS = LIMIT.total_seconds()
_TURN_SECONDS = 0.01  # after which a rank that waits looks whether all do
ELEMENTWISE = {  # what becomes of payloads
    Reduction.AVERAGE: np.add,
    Reduction.SUM: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}


class ThreadHandle:
    """What a rank holds of an operation."""

    def __init__(self, world: "World", rank: int, operation: Operation[Any], payload: bytes) -> None:
        self.operation = operation
        self.payload: bytes | memoryview = payload
        self.release: Release | None = None
        self.failure: HorovodInternalError | None = None
        self.answered = threading.Event()
        self._world, self._rank = world, rank
        self._result: list[Any] = []

    def is_done(self) -> bool:
        """Whether it was answered."""
        return self.answered.is_set()

    def await_response(self) -> None:
        """Until it was released or refused; noted."""
        self._world.engines[self._rank].awaited.append(self.operation.request.name)
        if self.answered.is_set():
            return
        engine, is_blocked = self._world.engines[self._rank], False
        engine.awaits = self
        while not self.answered.wait(_TURN_SECONDS):
            if not is_blocked and self._world.is_stuck:
                is_blocked = True
                self._world.block(self._rank, self.operation.request)
        engine.awaits = None

    def wait(self) -> Any:
        """The operation's result; raises its failure."""
        self.await_response()
        if self.failure is not None:
            raise self.failure
        if not self._result:
            assert self.release is not None
            self._result.append(self.operation.finish(self.release, memoryview(self.payload)))
        return self._result[0]


class ThreadEngine:
    """What reducers and tests use of an engine; notes the names of what is asked and awaited."""

    def __init__(self, world: "World", rank: int) -> None:
        self.rank, self.size = rank, world.size
        self.generation = 1
        self.is_elastic = world.is_elastic
        self.process_sets = ProcessSets(rank, world.size)
        self.asked: list[str] = []
        self.awaited: list[str] = []
        self.notes: list[str] = []
        self.awaits: ThreadHandle | None = None
        self._world = world
        self._counts: dict[tuple[int, str], int] = {}

    @property
    def all(self) -> Members:
        """The set of all ranks."""
        return self.find_members(0, "all")

    def find_members(self, process_set: int, title: str) -> Members:
        """As the true one."""
        return self.process_sets.find(process_set, title)

    def make_name(self, kind: str, name: str | None, process_set: int = 0) -> str:
        """As the true one."""
        assert name is None
        count = self._counts[process_set, kind] = self._counts.get((process_set, kind), 0) + 1
        return f"{kind}.noname.{count}"

    def fail_others(self, process_set: int, name: str, error: BaseException, *, is_of_step: bool) -> None:
        """As the true one."""
        members = self.find_members(process_set, name)
        self._world.ask(self.rank, Failed(members, name, f"{type(error).__name__}: {error}", is_of_step=is_of_step))

    def submit(self, operation: Operation[Any], *, at_once: bool = False, is_awaited: bool = False) -> ThreadHandle:
        """Ask, and note it."""
        del at_once, is_awaited
        self.asked.append(operation.request.name)
        self.notes.append(operation.request.signature.note)
        return self._world.ask(self.rank, operation)

    def run(self, operation: Operation[Any]) -> Any:
        """Ask and wait."""
        return self.wait(self.submit(operation))

    def wait(self, handle: ThreadHandle) -> Any:
        """As the true one."""
        return handle.wait()

    def await_response(self, handle: ThreadHandle) -> None:
        """As the true one."""
        handle.await_response()

    def complete_step(self, among: Members) -> None:
        """As the true one."""
        self.run(CommitRound(among))

    def note_step(self, process_set: int, index: int, ranks: Sequence[int] = ()) -> None:
        """No stop notice ever comes."""

    def progress(self) -> None:
        """Nothing is to be done: responses come by themselves."""

    def join(self) -> None:
        """Declare that this rank has no more data, and wait for all."""
        self.run(Join(self.find_members(0, "join")))


class World:
    """Ranks 0 to size - 1, and what they have pending."""

    def __init__(self, size: int = 2, *, is_elastic: bool = False) -> None:
        self.size = size
        self.is_elastic = is_elastic
        self.engines = [ThreadEngine(self, rank) for rank in range(size)]
        self._ordering = Ordering(size)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int, str], ThreadHandle] = {}
        self._groups: dict[tuple[int, ...], list[TorchGroup]] = {}

    def ask(self, rank: int, operation: Operation[Any]) -> ThreadHandle:
        """A rank asks; what is then complete runs immediately, in this thread. What has failed is waited for before."""
        request = operation.request
        key = rank, request.process_set, request.name
        while (earlier := self._pending.get(key)) is not None and isinstance(earlier.operation, Failed):
            earlier.await_response()
        with self._lock:
            payload = bytes(operation.payload) if request.signature.payload_dtype else b""
            handle = ThreadHandle(self, rank, operation, payload)
            assert key not in self._pending, f"{request.name} is in flight on rank {rank}"
            self._pending[key] = handle
            self._obey(self._ordering.ask(rank, request, tuple(operation.sizes)))
            return handle

    def add_set(self, ranks: tuple[int, ...]) -> int:
        """A process set, which all ranks have asked for; its number."""
        request = Request(0, f"add_set.{ranks}", Signature(Kind.ADD_SET))
        with self._lock:
            responses = [response for rank in range(self.size) for response in self._ordering.ask(rank, request, ranks)]
        (release,) = responses
        assert isinstance(release, Release)
        return release.value

    def block(self, rank: int, request: Request) -> None:
        """A rank waits, with its only thread, and has done so for long."""
        with self._lock:
            if (rank, request.process_set, request.name) in self._pending:
                self._obey(self._ordering.block(rank, request.process_set, request.name))

    def run(self, body: Callable[[ThreadEngine], Any]) -> list[Any]:
        """Call `body` with each rank's engine in a thread of its own; the results by rank."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def play(rank: int) -> None:
            try:
                results[rank] = body(self.engines[rank])
            except BaseException as error:  # noqa: BLE001 - the test is to see it
                errors.append(error)

        threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), f"still pending: {sorted(self._pending)}"
        return results

    @property
    def pending(self) -> list[tuple[int, int, str]]:
        """What was asked and not answered: rank, set and name."""
        return sorted(self._pending)

    @property
    def is_stuck(self) -> bool:
        """Whether every rank waits."""
        return all(engine.awaits is not None and not engine.awaits.is_done() for engine in self.engines)

    def _obey(self, responses: Sequence[Any]) -> None:
        for response in responses:
            if isinstance(response, Release):
                self._release(response)
            elif isinstance(response, Refusal):
                for rank in response.ranks:
                    handle = self._pending.pop((rank, response.process_set, response.name))
                    handle.failure = (DeadlockError if response.is_deadlock else OperationRefusedError)(response.reason)
                    handle.answered.set()

    def _release(self, release: Release) -> None:
        request = release.request
        asked = [rank for rank in release.members if rank not in release.joined]
        handles = {rank: self._pending.pop((rank, request.process_set, request.name)) for rank in asked}
        signature = request.signature
        silent = [rank for rank in asked if not handles[rank].payload and any(handles[rank].operation.sizes)]
        is_apart = silent or not any(handle.payload for handle in handles.values())
        if signature.payload_dtype and not (signature.kind is Kind.ALLGATHER and is_apart):
            total = combine(request, {rank: handle.payload for rank, handle in handles.items()})
            for handle in handles.values():
                handle.payload = total
        elif signature.kind is Kind.ADD_SET:
            for engine in self.engines:
                engine.process_sets.add(release.value, release.sizes[0], release.index)
        elif signature.kind not in (Kind.COMMIT, Kind.JOIN):
            for handle in handles.values():
                handle.payload = b""
            operations = [
                handles[rank].operation if rank in handles else make_neutral(release, rank) for rank in release.members
            ]
            size = len(operations)
            if release.members not in self._groups:
                prefix = str(release.members)
                self._groups[release.members] = run_members(
                    size, lambda position, gloo: gloo.make(prefix, position, size, "cpu", LIMIT)[0]
                )
            run_together(operations, self._groups[release.members], release)
            for rank in release.joined:
                neutral = operations[release.members.index(rank)]
                assert (neutral.request, neutral.finish(release, memoryview(b""))) == (request, None)
        for handle in handles.values():
            handle.release = release
            handle.answered.set()


def run_together(operations: Sequence[Operation[Any]], groups: Sequence[TorchGroup], release: Release) -> None:
    """Start the ranks' operations at the same time, since some wait for each other, and wait for what they do."""

    def start(operation: Operation[Any], group: TorchGroup) -> None:
        for work in operation.start(group, release):
            work.wait(LIMIT)

    with ThreadPoolExecutor(len(operations)) as threads:
        list(threads.map(start, operations, groups))


def combine(request: Request, payloads: dict[int, bytes]) -> bytes:
    """What becomes of the payloads."""
    signature = request.signature
    if not signature.payload_dtype:
        return b""
    if signature.kind is Kind.BROADCAST:
        return payloads[signature.root]
    if signature.kind is Kind.ALLGATHER:
        return b"".join(payloads[rank] for rank in sorted(payloads))
    assert signature.kind is Kind.ALLREDUCE
    assert len(next(iter(payloads.values()))) <= requests.PAYLOAD_BYTES
    parts = [np.frombuffer(payload, signature.payload_dtype) for payload in payloads.values()]
    return reduce(ELEMENTWISE[signature.reduction], parts).tobytes()
