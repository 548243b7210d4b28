"""Plays a random program as one rank of a real job, and compares each result with what one process computes."""

import faulthandler
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.devices import Place
from tests.worker_runtime.random_collectives import results
from tests.worker_runtime.random_collectives.calls import (
    ALLREDUCES,
    AVERAGE,
    DTYPES,
    GATHERS,
    GLOBAL,
    GROUPED,
    MAX,
    MIN,
    SCATTERS,
    SUM,
    Call,
    Kind,
    Maker,
    Segment,
)
from tests.worker_runtime.random_collectives.layouts import Check, lay_out

_DUMP_SECONDS = 25.0
Wait = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Pending:
    """An asynchronous call that has not been waited for; `handle` is None for what cannot be polled."""

    call: Call
    wait: Wait
    views: Sequence[torch.Tensor]
    check: Check
    handle: int | None


class UserError(Exception):
    """A mistake of the program itself, on one rank."""


def play(seed: int, segments: int, fails_at: tuple[int, int] | None = None) -> dict[str, int]:
    """Play the program of a seed: how often each kind of thing was done here.

    Args:
        seed: the seed of the program.
        segments: how many it has.
        fails_at: a rank that raises UserError after so many segments.
    """
    faulthandler.dump_traceback_later(_DUMP_SECONDS)
    try:
        player = Player(seed)
        for index, segment in enumerate(Maker(seed, hvd.size()).make(segments)):
            if (hvd.rank(), index) == fails_at:
                raise UserError
            player.play(segment)
        player.finish(player.pending, 1.0)
        hvd.barrier()
        return dict(player.counts)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Player:
    """One rank."""

    def __init__(self, seed: int) -> None:
        self.rank = hvd.rank()
        self.pending: list[Pending] = []
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._chance = random.Random(seed * 100 + self.rank)  # noqa: S311 - a program, no secret
        self._sets = {GLOBAL: hvd.global_process_set}

    def play(self, segment: Segment) -> None:
        """Change the sets, call what is to be called, and wait for some of it."""
        for where in segment.removed:
            self.finish([pending for pending in self.pending if pending.call.where == where], 1.0)
            assert hvd.remove_process_set(self._sets.pop(where))
        for where, ranks in segment.added:
            self._sets[where] = hvd.add_process_set(list(ranks))
        calls = [call for call in segment.calls if self.rank in call.ranks and self.rank not in call.absent]
        if segment.manner == "threads":
            self._play_in_threads(calls)
        else:
            self._call_all(calls, self._chance)
        if segment.manner == "join":
            self.counts["join"] += 1
            assert 0 <= hvd.join() < hvd.size()
        self.finish(self.pending, 0.7)

    def finish(self, some: Sequence[Pending], share: float) -> None:
        """Wait for a share of what is pending, in an order of one's own."""
        for pending in self._chance.sample(some, k=len(some)):
            if self._chance.random() < share:
                self._end(pending)

    def _play_in_threads(self, calls: Sequence[Call]) -> None:
        """A thread for each set."""
        sets = sorted({call.where for call in calls})
        self.counts["threads"] += len(sets)
        if not sets:
            return
        with ThreadPoolExecutor(len(sets), initializer=Place().take) as threads:
            runs = []
            for where in sets:
                some = [call for call in calls if call.where == where]
                chance = random.Random(self._chance.random())  # noqa: S311 - a program, no secret
                runs.append(threads.submit(self._call_all, some, chance))
            for run in runs:
                run.result()

    def _call_all(self, calls: Sequence[Call], chance: random.Random) -> None:
        """Synchronous ones in their order, the others anywhere between them."""
        waiting = [call for call in calls if call.is_synchronous]
        others = [call for call in calls if not call.is_synchronous]
        chance.shuffle(others)
        sets = {call.where for call in calls}
        while waiting or others:
            is_other = bool(others) and chance.random() < len(others) / (len(others) + len(waiting))
            call = others.pop() if is_other else waiting.pop(0)
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.003)  # another rank comes first: what is tested, not waited for
            for pending in list(self.pending):
                if _is_same(pending.call, call):
                    self._end(pending)
            try:
                self._call(call)
            except Exception as error:
                raise AssertionError(f"rank {self.rank}, {call}: {error!r}") from error
            if own := [pending for pending in list(self.pending) if pending.call.where in sets]:  # no other thread's
                handle = chance.choice(own).handle
                assert handle is None or hvd.poll(handle) in (True, False)

    def _call(self, call: Call) -> None:
        self.counts[call.kind] += 1
        self.counts[f"{'synchronous' if call.is_synchronous else 'asynchronous'}"] += 1
        self.counts["while others have joined"] += bool(call.absent)
        begin, views, check = self._prepare(_spoil(call) if call.spoiler == self.rank else call)
        if call.is_synchronous:
            self._take(call, begin, views, check)
            return
        handle = begin()
        if isinstance(handle, int):
            self.pending.append(Pending(call, lambda: hvd.synchronize(handle), views, check, handle))
        else:
            self.pending.append(Pending(call, handle, views, check, None))

    def _end(self, pending: Pending) -> None:
        self.pending.remove(pending)
        self._take(pending.call, pending.wait, pending.views, pending.check)

    def _take(self, call: Call, wait: Wait, views: Sequence[torch.Tensor], check: Check) -> None:
        """Wait for a result and look at it."""
        if call.is_refused:
            self.counts["refused"] += 1
            expected = "not supported with Join at this time" if call.absent else r"[Mm]ismatched"
            expected += "|shut down on rank|was lost|was cut off"  # where a rank fails; the next call says so
            with pytest.raises(hvd.HorovodInternalError, match=expected):
                wait()
            return
        _compare(self._seed, call, self.rank, wait(), views)
        check()

    def _prepare(self, call: Call) -> tuple[Wait, Sequence[torch.Tensor], Check]:
        """What calls it, the tensors that it is given, and a check of what lies beside them."""
        where, name = self._sets[call.where], call.name
        match call.kind:
            case Kind.BARRIER:
                return lambda: hvd.barrier(where), (), _pass
            case Kind.BROADCAST_OBJECT:
                value = results.make_object(self._seed, call, self.rank)
                return lambda: hvd.broadcast_object(value, call.root, name, where), (), _pass
            case Kind.ALLGATHER_OBJECT:
                value = results.make_object(self._seed, call, self.rank)
                return lambda: hvd.allgather_object(value, name, where), (), _pass
            case Kind.SPARSE_ALLREDUCE:
                sparse = results.make_sparse(self._seed, call, self.rank)
                begin = partial(hvd.sparse_allreduce_async, sparse, name, call.op, where)
                return partial(_run, begin) if call.is_synchronous else begin, (), _pass
        laid = [lay_out(values, call.layout) for values in results.make_inputs(self._seed, call, self.rank)]
        views = [view for view, _ in laid]
        function = getattr(hvd, f"{call.kind}{'' if call.is_synchronous else '_async'}{'_' * call.is_in_place}")
        given = views if call.kind in GROUPED else views[0]

        def check() -> None:
            for _, check_one in laid:
                check_one()

        return lambda: function(given, **self._options(call)), views, check

    def _options(self, call: Call) -> dict[str, object]:
        options: dict[str, object] = {"name": call.name, "process_set": self._sets[call.where]}
        if call.kind in (*ALLREDUCES, *SCATTERS):
            options |= {"op": call.op, "prescale_factor": call.prescale, "postscale_factor": call.postscale}
        if call.kind is Kind.BROADCAST:
            options["root_rank"] = call.root
        if call.kind is Kind.ALLTOALL:
            options["splits"] = list(call.rows[call.ranks.index(self.rank)])
        return options


def _run(begin: Callable[[], Wait]) -> object:
    """Begin and wait."""
    return begin()()


def _pass() -> None:
    """Nothing lies beside."""


def _is_same(one: Call, other: Call) -> bool:
    return (one.kind, one.where, one.name) == (other.kind, other.where, other.name)


def _compare(seed: int, call: Call, rank: int, result: object, views: Sequence[torch.Tensor]) -> None:
    """Raise AssertionError unless it is what one process makes of all ranks' tensors."""
    if call.kind is Kind.BARRIER:
        assert result is None
    elif call.kind is Kind.BROADCAST_OBJECT:
        assert result == results.make_object(seed, call, call.root)
    elif call.kind is Kind.ALLGATHER_OBJECT:
        assert result == [results.make_object(seed, call, other) for other in call.ranks]
    else:
        _compare_tensors(seed, call, rank, result, views)


def _compare_tensors(seed: int, call: Call, rank: int, result: object, views: Sequence[torch.Tensor]) -> None:
    got = list(result) if isinstance(result, (list, tuple)) else [result]
    if call.kind is Kind.ALLTOALL:
        position = call.ranks.index(rank)
        assert got.pop().tolist() == [rows[position] for rows in call.rows]
    if call.kind is Kind.SPARSE_ALLREDUCE:
        got = [tensor.to(torch.float64).to_dense() for tensor in got]
    if call.is_in_place:
        assert all(tensor is view for tensor, view in zip(got, views, strict=True))
    else:
        given = results.make_inputs(seed, call, rank) if views else []
        assert all(_have_equal_bits(view, values) for view, values in zip(views, given, strict=True)), "input changed"
    for tensor, expected in zip(got, results.compute(seed, call, rank), strict=True):
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), f"rank {rank}: {call}"
        if results.is_exact(call):
            is_right = _have_equal_bits(tensor, expected)
        else:
            tolerance = {2: 2e-2, 1: 2e-1}.get(find_size(call), 1e-5)
            is_right = torch.allclose(tensor, expected, rtol=tolerance, atol=tolerance)
        assert is_right, f"rank {rank}: {call}\ngot {tensor}\nexpected {expected}"


def find_size(call: Call) -> int:
    """The bytes of the smallest of its elements."""
    return min(results.find_dtype(name).itemsize for name in call.dtypes)


def _have_equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(results.list_bytes(one), results.list_bytes(other))


def _spoil(call: Call) -> Call:
    """What the spoiler asks instead."""
    first, *others = call.shapes
    match call.spoil:
        case "dtype":
            choice = DTYPES[call.op] if call.kind in (*ALLREDUCES, *SCATTERS) else ("float32", "float64")
            other = next(dtype for dtype in choice if dtype != call.dtypes[0] and dtype != "bool")
            return replace(call, dtypes=(other, *call.dtypes[1:]))
        case "shape":
            grown = (first[0] + 1, *first[1:]) if first else (2,)
            return replace(call, shapes=(grown, *others))
        case "op":
            return replace(call, op={SUM: AVERAGE, MIN: MAX, MAX: MIN}.get(call.op, SUM))
        case "factor":
            is_bool = "bool" in call.dtypes
            return replace(call, prescale=3.0, **({"dtypes": ("float32",) * len(call.dtypes)} if is_bool else {}))
        case "count":
            rows = tuple((*each, 1) for each in call.rows) if call.kind in GATHERS else call.rows
            dtypes = (*call.dtypes, call.dtypes[0])
            return replace(call, dtypes=dtypes, shapes=(*call.shapes, first or (1,)), rows=rows)
        case "row":
            return replace(call, shapes=((*first, 2), *others))
        case "dimensions":
            return replace(call, shapes=((*first, 1, 1), *others))
    position = call.ranks.index(call.root)
    return replace(call, root=call.ranks[position - 1])
