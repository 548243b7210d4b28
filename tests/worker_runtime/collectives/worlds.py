"""Runs operations on several ranks over a real gloo group, with the simplest sequencer there can be.

The ranks tell each other their questions through torch's store, one operation after the other in one order; every rank
works out the release, and what becomes of the payloads, by itself.
"""

import contextlib
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo, TCPStore

from worker_runtime.collectives import lots, make_neutral, parcels
from worker_runtime.core import questions
from worker_runtime.core.questions import Kind, Question, Reduction, Release
from worker_runtime.operation import Members, Operation

SCRIPT = Path(__file__).with_name("rank_forge.py")
ROOT = SCRIPT.parent.parent.parent.parent
LIMIT_SECONDS = 40.0
LIMIT = timedelta(seconds=10)
COMBINE = {
    Reduction.AVERAGE: np.add,
    Reduction.SUM: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}
ELEMENTWISE = tuple(COMBINE)
WAYS = ("question", "gloo", "large ones apart")
in_two_ways = pytest.mark.parametrize("way", WAYS[:2])
in_three_ways = pytest.mark.parametrize("way", WAYS)


class World:
    """All ranks, as one of them sees them."""

    def __init__(self, rank: int, size: int, store: Path) -> None:
        self.rank, self.size = rank, size
        meeting = FileStore(str(store), size)  # slow: only for the port of the other
        if rank == 0:
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
            meeting.set("port", str(self._store.port))
        else:
            port = int(meeting.get("port"))
            self._store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LIMIT)
        self._counts = Counter()
        self._groups = {}
        self.all = self.form_set(0, range(size))

    def form_set(self, number: int, ranks: Sequence[int]) -> Members:
        """Make a process set's group; called by its members."""
        members = Members(number, tuple(ranks), self.rank)
        if members.size > 1:
            options = ProcessGroupGloo._Options()
            options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = LIMIT
            store = PrefixStore(f"group {number}", self._store)
            self._groups[number] = ProcessGroupGloo(store, members.position, members.size, options)
            self._groups[number].barrier().wait(LIMIT)  # or one could be gone before the others have connected
        return members

    def choose(self, way: str) -> None:
        """From now on data travel in one of WAYS: beside the question through gloo, small ones too."""
        if way != WAYS[0]:
            questions.PAYLOAD_BYTES = -1
        if way == WAYS[2]:
            lots.LARGE_BYTES, parcels._LARGE_BYTES = 16, 8

    def run(self, operation: Operation[Any], joined: Sequence[int] = ()) -> Any:  # noqa: ANN401 - whatever the operation gives
        """Ask, run and finish."""
        return self.begin(operation, joined)()

    def begin(self, operation: Operation[Any], joined: Sequence[int] = ()) -> Callable[[], Any]:
        """Ask, and start when all have asked; what is returned waits and gives the result.

        Args:
            operation: of this rank.
            joined: ranks that `stand_in` for it.
        """
        question, size = operation.question, len(self.ranks(operation.question.process_set))
        if size == 1:
            assert not question.signature.payload_dtype
            terms = Release(-1, question, (self.rank,), extents=(tuple(operation.extents),))
            return lambda: operation.finish(terms, memoryview(b""))
        payload = bytes(operation.payload)
        terms, answer = self._exchange((question, tuple(operation.extents), payload), question.process_set, joined)
        assert terms.question == question
        if question.signature.payload_dtype:
            return lambda: operation.finish(terms, memoryview(answer))
        assert not payload
        works = operation.start(self._groups[question.process_set], terms)

        def finish() -> object:
            for work in works:
                work.wait(LIMIT)
            return operation.finish(terms, memoryview(b""))

        return finish

    def stand_in(self, joined: Sequence[int]) -> Release:
        """As a rank that has joined: do the part of the next operation of the others."""
        terms, _ = self._exchange(None, 0, joined)
        neutral = make_neutral(terms, self.rank)
        assert neutral.question == terms.question
        for work in neutral.start(self._groups[0], terms):
            work.wait(LIMIT)
        assert neutral.finish(terms, memoryview(b"")) is None
        return terms

    def leave(self) -> None:
        """Let rank 0, which has the store, outlive the others."""
        self._store.set(f"gone {self.rank}", "")
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):  # one was killed
                self._store.wait([f"gone {rank}" for rank in range(self.size)])

    def ranks(self, number: int) -> tuple[int, ...]:
        """Of a set that has a group; else only this one."""
        return tuple(range(self._groups[number].size())) if number in self._groups else (self.rank,)

    def _exchange(
        self, own: tuple[Question, tuple[int, ...], bytes] | None, number: int, joined: Sequence[int]
    ) -> tuple[Release, bytes]:
        group = self._groups[number]
        self._counts[number] += 1
        key = f"{number} {self._counts[number]}"
        self._store.set(f"{key} {group.rank()}", pickle.dumps((self.rank, own)))
        told = dict(pickle.loads(self._store.get(f"{key} {position}")) for position in range(group.size()))  # noqa: S301 - the test's own
        asked = [answer for answer in told.values() if answer is not None]
        assert sorted(joined) == [rank for rank, answer in told.items() if answer is None]
        question = asked[0][0]
        assert all(other == question for other, _, _ in asked), asked
        zeros = (0,) * len(asked[0][1])
        extents = tuple(zeros if answer is None else answer[1] for answer in told.values())
        terms = Release(self._counts[number], question, tuple(told), tuple(joined), extents)
        payloads = {rank: answer[2] for rank, answer in told.items() if answer is not None}
        return terms, combine(question, payloads)


def compute(reduction: Reduction, tensors: Sequence[torch.Tensor], size: int | None = None) -> torch.Tensor:
    """What a reduction makes of the tensors of all ranks, or of those of `size` that have not joined."""
    stacked = torch.stack(list(tensors))
    dtype = stacked.dtype
    match reduction:
        case Reduction.SUM:
            return stacked.sum(0, dtype=dtype)
        case Reduction.AVERAGE:
            return (stacked.sum(0, dtype=dtype) / (size or len(stacked))).to(dtype)
        case Reduction.PRODUCT:
            return stacked.prod(0, dtype=dtype)
    return stacked.amin(0) if reduction is Reduction.MIN else stacked.amax(0)


def describe(tensor: torch.Tensor) -> tuple[torch.dtype, list]:
    """Dtype and values; torch cannot pickle tensors of its newest dtypes."""
    return tensor.dtype, tensor.to(torch.complex128).tolist()


def combine(question: Question, payloads: dict[int, bytes]) -> bytes:
    """What becomes of the payloads."""
    signature = question.signature
    if not signature.payload_dtype:
        return b""
    if signature.kind is Kind.BROADCAST:
        return payloads[signature.root]
    assert signature.kind is Kind.ALLREDUCE
    assert len(next(iter(payloads.values()))) <= questions.PAYLOAD_BYTES
    parts = [np.frombuffer(payload, signature.payload_dtype) for payload in payloads.values()]
    return reduce(COMBINE[signature.reduction], parts).tobytes()


class RankFailedError(AssertionError):
    """A function raised on one rank or more; the text holds the tracebacks."""


class Worlds:
    """Makes a world for each function; owns the process that forks the ranks."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker_runtime.collectives.rank_forge", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        )
        theirs.close()

    def run(self, function: Callable[[World], Any], size: int = 2, way: str = WAYS[0]) -> list[Any]:
        """Call `function(world)` on each rank of a new world, where data travel in a way; the results by rank."""
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        self._connection.send_bytes(cloudpickle.dumps((function, size, way)))
        if not self._connection.poll(LIMIT_SECONDS):
            pytest.exit("the ranks of a test did not end")
        outcomes = cloudpickle.loads(self._connection.recv_bytes())
        failures = [f"rank {rank}: {text}" for rank, (succeeded, text) in enumerate(outcomes) if not succeeded]
        if failures:
            raise RankFailedError("\n".join(failures))
        return [result for _, result in outcomes]

    def close(self) -> None:
        """End the process; it must end by itself."""
        self._connection.close()
        try:
            assert self._process.wait(LIMIT_SECONDS) == 0
        finally:
            self._process.kill()
            self._process.wait()
