"""A world in one process: each rank is a thread, the sequencer's rules are the true ones, and gloo is a few additions.

It shows what a real world does not let a test see: who asked for what and when, and what is in flight.

Long because it is a whole world.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from worker_runtime.accord import Accord
from worker_runtime.collectives import Commit, Join, make_neutral
from worker_runtime.core.ordering import Ordering
from worker_runtime.core.questions import Kind, Question, Reduction, Refusal, Release, Restart, Signature, Wanted
from worker_runtime.errors import HorovodInternalError, OperationRefusedError
from worker_runtime.mentions import Mention
from worker_runtime.operation import Members, Operation
from worker_runtime.process_sets import ProcessSets

LIMIT_SECONDS = 20.0
_TURN_SECONDS = 0.01  # after which a rank that waits looks whether it is wanted
NUMPY_REDUCTIONS = {
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
        self.terms: Release | None = None
        self.failure: HorovodInternalError | None = None
        self.answered = threading.Event()
        self._world, self._rank = world, rank
        self._result: list[Any] = []

    def is_done(self) -> bool:
        """Whether it was answered."""
        return self.answered.is_set()

    def await_answer(self) -> None:
        """Until it was released or refused; noted."""
        self._world.executors[self._rank].awaited.append(self.operation.question.name)
        if self.answered.is_set():
            return
        executor, question, is_blocked = self._world.executors[self._rank], self.operation.question, False
        executor.accord.begin_wait()
        self._world.wait(self._rank, question, is_blocked=False)
        executor.awaits = self
        while not self.answered.wait(_TURN_SECONDS):
            if executor.accord.is_wanted:
                executor.awaits = None
                executor.accord.help()
                executor.awaits = self
            elif not is_blocked and self._world.is_stuck:
                is_blocked = True
                self._world.wait(self._rank, question, is_blocked=True)
        executor.awaits = None
        executor.accord.end_wait()

    def wait(self) -> Any:  # noqa: ANN401 - the operation's
        """Its result, or its failure."""
        self.await_answer()
        if self.failure is not None:
            raise self.failure
        if not self._result:
            assert self.terms is not None
            self._result.append(self.operation.finish(self.terms, memoryview(self.payload)))
        return self._result[0]


class ThreadExecutor:
    """What reducers use of an executor; notes the names of what is asked and awaited."""

    def __init__(self, world: "World", rank: int) -> None:
        self.rank, self.size = rank, world.size
        self.generation = 1
        self.is_elastic = world.is_elastic
        self.process_sets = ProcessSets(rank, world.size)
        self.asked: list[str] = []
        self.awaited: list[str] = []
        self.notes: list[str] = []
        self.given_up: list[str] = []
        self.withdrawn: list[str] = []
        self.awaits: ThreadHandle | None = None
        self._world = world
        self._counts: dict[tuple[int, str], int] = {}
        self.accord = Accord(self._counts.clear)

    def find_members(self, process_set: int, title: str) -> Members:
        """As the true one."""
        return self.process_sets.find(process_set, title)

    def make_name(self, kind: str, name: str | None, process_set: int = 0) -> str:
        """As the true one."""
        assert name is None
        count = self._counts[process_set, kind] = self._counts.get((process_set, kind), 0) + 1
        return f"{kind}.noname.{f'0.{self.accord.restarts}.' if self.accord.restarts else ''}{count}"

    def give_up_call(self, process_set: int, name: str, reason: str) -> None:
        """Tell the world, and note it."""
        self.given_up.append(name)
        self._world.give_up(self.rank, process_set, name, reason)

    def submit(self, operation: Operation[Any], *, at_once: bool = False, is_awaited: bool = False) -> ThreadHandle:
        """Ask, and note it."""
        del at_once, is_awaited
        self.asked.append(operation.question.name)
        self.notes.append(operation.question.signature.note)
        return self._world.ask(self.rank, operation)

    def withdraw(self, handle: ThreadHandle, reason: str) -> None:
        """Tell the world, and note it."""
        self.withdrawn.append(handle.operation.question.name)
        self._world.withdraw(self.rank, handle.operation.question, reason)

    def run(self, operation: Operation[Any]) -> Any:  # noqa: ANN401 - the operation's
        """Ask and wait."""
        return self.submit(operation).wait()

    def commit(self, among: Members) -> None:
        """As the true one."""
        self.run(Commit(among))

    def progress(self) -> None:
        """Nothing is to be done: answers come by themselves."""

    def join(self) -> None:
        """Declare that this rank has no more data, and wait for all."""
        self.run(Join(self.find_members(0, "join")))


class _Call:
    """One call of a group's method by all ranks; the last one to come carries it out for all."""

    def __init__(self, size: int) -> None:
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._size = size
        self._done = threading.Event()

    def come(self, position: int, kind: str, arguments: tuple[Any, ...]) -> None:
        self._arguments[position] = arguments
        if len(self._arguments) == self._size:
            perform(kind, [self._arguments[member] for member in range(self._size)])
            self._done.set()

    def wait(self, timeout: object = None) -> bool:
        del timeout
        assert self._done.wait(LIMIT_SECONDS)
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()


def perform(kind: str, arguments: list[tuple[Any, ...]]) -> None:
    """What gloo would do with the ranks' tensors."""
    firsts = [first for first, *_ in arguments]
    if kind == "broadcast":
        result = firsts[arguments[0][1]].clone()
    elif kind == "allreduce":
        stack = torch.stack(firsts)
        name = str(arguments[0][1]).rpartition(".")[2]
        result = {"SUM": stack.sum, "PRODUCT": stack.prod, "MIN": stack.amin, "MAX": stack.amax}[name](0)
    elif kind == "allgather":
        for outputs, _ in arguments:
            for output, (_, own) in zip(outputs, arguments, strict=True):
                output.copy_(own)
        return
    else:
        sent = [source.split(splits) for _, source, _, splits in arguments]
        for position, (output, *_) in enumerate(arguments):
            output.view(-1).copy_(torch.cat([parts[position] for parts in sent]))
        return
    for tensor in firsts:
        tensor.copy_(result)


class _Group:
    """One rank's group of an operation."""

    def __init__(self, calls: list[_Call], lock: threading.Lock, position: int, size: int) -> None:
        self._calls, self._lock = calls, lock
        self._position, self._size = position, size
        self._made = 0

    def allreduce(self, tensor: torch.Tensor, op: object) -> _Call:
        return self._call("allreduce", tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> _Call:
        return self._call("broadcast", tensor, root)

    def allgather(self, outputs: list[torch.Tensor], own: torch.Tensor) -> _Call:
        return self._call("allgather", outputs, own)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: list[int], splits: list[int]
    ) -> _Call:
        return self._call("alltoall", output, source, output_splits, splits)

    def _call(self, kind: str, *arguments: object) -> _Call:
        with self._lock:
            if self._made == len(self._calls):
                self._calls.append(_Call(self._size))
            call = self._calls[self._made]
            self._made += 1
            call.come(self._position, kind, arguments)
        return call


class World:
    """Ranks 0 to size - 1, and what they have pending."""

    def __init__(self, size: int = 2, *, is_elastic: bool = False) -> None:
        self.size = size
        self.is_elastic = is_elastic
        self.executors = [ThreadExecutor(self, rank) for rank in range(size)]
        self._ordering = Ordering(size)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int, str], ThreadHandle] = {}

    def ask(self, rank: int, operation: Operation[Any]) -> ThreadHandle:
        """A rank asks; what is then complete runs at once, in this thread."""
        with self._lock:
            question = operation.question
            key = rank, question.process_set, question.name
            payload = bytes(operation.payload) if question.signature.payload_dtype else b""
            handle = ThreadHandle(self, rank, operation, payload)
            assert key not in self._pending, f"{question.name} is in flight on rank {rank}"
            self._pending[key] = handle
            self._obey(self._ordering.ask(rank, question, tuple(operation.extents)))
            return handle

    def add_set(self, ranks: tuple[int, ...]) -> int:
        """A process set, which all ranks have asked for; its number."""
        question = Question(0, f"add_set.{ranks}", Signature(Kind.ADD_SET))
        with self._lock:
            answers = [answer for rank in range(self.size) for answer in self._ordering.ask(rank, question, ranks)]
        (release,) = answers
        assert isinstance(release, Release)
        return release.value

    def wait(self, rank: int, question: Question, *, is_blocked: bool) -> None:
        """A rank waits, with its only thread."""
        with self._lock:
            if (rank, question.process_set, question.name) in self._pending:
                self._obey(self._ordering.wait(rank, question.process_set, question.name, is_blocked=is_blocked))

    def give_up(self, rank: int, process_set: int, name: str, reason: str) -> None:
        """A rank will not ask."""
        with self._lock:
            self._obey(self._ordering.give_up(rank, process_set, name, reason))

    def withdraw(self, rank: int, question: Question, reason: str) -> None:
        """A rank does not want an answer any more."""
        with self._lock:
            self._obey(self._ordering.withdraw(rank, question.process_set, question.name, reason))

    def run(self, body: Callable[[ThreadExecutor], Any]) -> list[Any]:
        """Call `body` with each rank's executor in a thread of its own; the results by rank."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def play(rank: int) -> None:
            try:
                results[rank] = body(self.executors[rank])
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
        """Whether every rank waits, and none is wanted."""
        return all(
            executor.awaits is not None and not executor.awaits.is_done() and not executor.accord.is_wanted
            for executor in self.executors
        )

    def _obey(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Release):
                self._release(answer)
            elif isinstance(answer, Wanted):
                self.executors[answer.rank].accord.want(Mention(answer.process_set, answer.name, answer.note))
            elif isinstance(answer, Restart):
                for executor in self.executors:
                    executor.accord.restart()
            elif isinstance(answer, Refusal):
                for rank in answer.ranks:
                    handle = self._pending.pop((rank, answer.process_set, answer.name))
                    handle.failure = OperationRefusedError(answer.reason)
                    handle.answered.set()

    def _release(self, terms: Release) -> None:
        question = terms.question
        asked = [rank for rank in terms.members if rank not in terms.joined]
        handles = {rank: self._pending.pop((rank, question.process_set, question.name)) for rank in asked}
        signature = question.signature
        if signature.payload_dtype:
            parts = [np.frombuffer(handle.payload, signature.payload_dtype) for handle in handles.values()]
            total = parts[0].copy()
            for part in parts[1:]:
                total = NUMPY_REDUCTIONS[signature.reduction](total, part)
            for handle in handles.values():
                handle.payload = total.tobytes()
        elif signature.kind is Kind.ADD_SET:
            for executor in self.executors:
                executor.process_sets.add(terms.value, terms.extents[0], terms.index)
        elif signature.kind not in (Kind.COMMIT, Kind.JOIN):
            operations = [
                handles[rank].operation if rank in handles else make_neutral(terms, rank) for rank in terms.members
            ]
            run_together(operations, terms)
        for handle in handles.values():
            handle.terms = terms
            handle.answered.set()


def run_together(operations: Sequence[Operation[Any]], terms: Release) -> None:
    """Start the ranks' operations at the same time, since some wait for each other, and wait for what they do."""
    calls: list[_Call] = []
    lock, size = threading.Lock(), len(operations)

    def start(position: int) -> None:
        for work in operations[position].start(_Group(calls, lock, position, size), terms):
            work.wait()

    threads = [threading.Thread(target=start, args=(position,)) for position in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
