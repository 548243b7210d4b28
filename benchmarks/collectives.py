"""Time of an allreduce of one small tensor, one large tensor and a thousand tiny ones, compared with plain gloo.

It also compares the collectives of objects and SyncBatchNorm with the small allreduces that could replace them.

    .venv/bin/python benchmarks/collectives.py --json benchmarks/collectives.json

or inside a job, `hvdrun -np 2 python benchmarks/collectives.py`. All contenders take turns in the same processes, with
float32 sums in place, and their results are checked first. "Busy" means that rank 0 has another Python thread in a
loop, as data loaders and loggers have.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from horovod_peer import join_horovod
from jobs import Block, Case, is_worker, make_parser, run_cases, run_jobs
from targets import MEDIAN, P90, Target

import worker_runtime.torch as hvd

GLOO = "gloo"
ONE_BY_ONE = "gloo, one by one"
BY_HAND = "gloo, flattened by hand"
OURS = "hvdrun"
HOROVOD = "Horovod"

ALLREDUCE = "hvdrun, allreduce of 1 KB"
BY_ALLREDUCES = "BatchNorm2d and four allreduces of 1 KB"
SYNC = "hvdrun, SyncBatchNorm"

NAMES = ("small", "busy", "large", "many", "objects", "norm")
_SIZES = (2, 4)
_SIZE_OF_TARGETS = 2
_JOIN_LIMIT_SECONDS = 10.0

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Work:
    """The numbers of summed tensors, of their elements, and of the operations in a block, each timed alone."""

    tensors: int
    elements: int
    operations: int


SMALL = Work(1, 256, 100)
SMALL_BUSY = Work(1, 256, 20)
LARGE = Work(1, 16 * 1024 * 1024, 1)
MANY = Work(1000, 16, 1)

# Makes what sums these tensors over all ranks, in place.
Make = Callable[[list[torch.Tensor]], Run]


def use_gloo(tensors: list[torch.Tensor]) -> Run:
    """One all_reduce."""
    (tensor,) = tensors
    return lambda: dist.all_reduce(tensor)


def use_gloo_one_by_one(tensors: list[torch.Tensor]) -> Run:
    """All started, then all awaited."""

    def run() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return run


def use_gloo_flattened(tensors: list[torch.Tensor]) -> Run:
    """What users write by hand: copy the tensors into one, all_reduce it, and copy back."""

    def run() -> None:
        flat = torch.cat(tensors)
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, tensors[0].numel()), strict=True):
            tensor.copy_(part)

    return run


def use_api(api: ModuleType) -> Make:
    """One named operation of Horovod's API, without torch.compile."""

    def make(tensors: list[torch.Tensor]) -> Run:
        (tensor,) = tensors
        return lambda: api.allreduce_(tensor, op=api.Sum, name="one")

    return make


def use_api_one_by_one(api: ModuleType) -> Make:
    """Submit all operations, then synchronize all."""

    def make(tensors: list[torch.Tensor]) -> Run:
        named = [(tensor, f"many.{index}") for index, tensor in enumerate(tensors)]

        def run() -> None:
            for handle in [api.allreduce_async_(tensor, op=api.Sum, name=name) for tensor, name in named]:
                api.synchronize(handle)

        return run

    return make


def use_api_grouped(api: ModuleType) -> Make:
    """Submitted as one group."""
    return lambda tensors: lambda: api.grouped_allreduce_(tensors, op=api.Sum, name="group")


def make_block(work: Work, make: Make, beside: Callable[[], AbstractContextManager[None]] = nullcontext) -> Block:
    """Check the operations, then time each alone inside the context `beside`.

    Raises:
        RuntimeError: the sum is wrong.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((work.elements,), float(rank + 1)) for _ in range(work.tensors)]
    run = make(tensors)
    run()
    if any(not bool((tensor == size * (size + 1) / 2).all()) for tensor in tensors):
        raise RuntimeError("an allreduce has not given the sum of all ranks")
    for tensor in tensors:
        tensor.zero_()  # so that no number of repetitions overflows
    return time_each(run, work.operations, beside)


def time_each(run: Run, operations: int, beside: Callable[[], AbstractContextManager[None]] = nullcontext) -> Block:
    """Time each of several operations inside the context `beside`."""

    def block() -> Sequence[float]:
        seconds = []
        with beside():
            for _ in range(operations):
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
        return seconds

    return block


def make_normalization(*, is_synchronized: bool) -> Run:
    """Forward and backward of 64 images of 32 channels of 32 x 32, with as many allreduces beside as have to be."""
    module = hvd.SyncBatchNorm(32) if is_synchronized else torch.nn.BatchNorm2d(32)
    images = torch.rand(64, 32, 32, 32, requires_grad=True)
    gradient = torch.rand_like(images)
    one = torch.zeros(SMALL.elements)

    def run() -> None:
        module(images).backward(gradient)
        for number in range(0 if is_synchronized else 4):
            hvd.allreduce_(one, op=hvd.Sum, name=f"norm.{number}")

    return run


@contextmanager
def keep_rank_0_busy() -> Iterator[None]:
    """Run a Python thread in a loop on rank 0, and nothing on the other ranks.

    Raises:
        RuntimeError: the thread does not end.
    """
    is_wanted = dist.get_rank() == 0

    def loop() -> None:
        while is_wanted:
            pass

    thread = threading.Thread(target=loop, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_wanted = False
        thread.join(_JOIN_LIMIT_SECONDS)
        if thread.is_alive():
            raise RuntimeError("the busy thread has not ended")


class Cases:
    """All contenders, and the targets, which are for two workers.

    Args:
        horovod: Horovod's own module, where it is installed.
    """

    def __init__(self, horovod: ModuleType | None) -> None:
        self._apis: dict[str, ModuleType] = {OURS: hvd} if horovod is None else {OURS: hvd, HOROVOD: horovod}

    def make_small(self) -> Case:
        """One tensor of 1 KB."""
        targets = [Target(OURS, GLOO, 0.0, 0.3e-3), Target(OURS, GLOO, 0.0, 0.6e-3, P90)]
        return self._make_single("1 KB", SMALL, targets)

    def make_busy(self) -> Case:
        """The same beside a busy thread."""
        targets = [Target(OURS, GLOO, quantile=quantile) for quantile in (MEDIAN, P90)]
        return self._make_single("1 KB, rank 0 busy", SMALL_BUSY, targets, keep_rank_0_busy)

    def make_large(self) -> Case:
        """One tensor of 64 MB."""
        return self._make_single("64 MB", LARGE, [Target(OURS, GLOO, 1.05)])

    def make_many(self) -> Case:
        """A thousand tiny tensors."""
        makers: dict[str, Make] = {ONE_BY_ONE: use_gloo_one_by_one, BY_HAND: use_gloo_flattened}
        for name, api in self._apis.items():
            makers |= {f"{name}, one by one": use_api_one_by_one(api), f"{name}, grouped": use_api_grouped(api)}
        single, grouped = f"{OURS}, one by one", f"{OURS}, grouped"
        targets = [Target(single, BY_HAND, 0.0, 10e-3), Target(grouped, BY_HAND, 0.0, 6e-3)]
        return Case(
            _name("1,000 tensors of 64 B"),
            {name: make_block(MANY, make) for name, make in makers.items()},
            (BY_HAND,),
            _limit(targets),
            frozenset({single, grouped}),
            slow=frozenset({ONE_BY_ONE}),
        )

    def make_objects(self) -> Case:
        """Objects of 1 KB."""
        data, one = bytes(1024), torch.zeros(SMALL.elements)
        runs: dict[str, Run] = {
            ALLREDUCE: lambda: hvd.allreduce_(one, op=hvd.Sum, name="one"),
            "hvdrun, allgather_object": lambda: hvd.allgather_object(data, name="all"),
            "hvdrun, broadcast_object": lambda: hvd.broadcast_object(data, name="root"),
        }
        return self._compare("objects of 1 KB", runs, ALLREDUCE, 2.5, SMALL_BUSY.operations)

    def make_norm(self) -> Case:
        """SyncBatchNorm."""
        by_hand, ours = make_normalization(is_synchronized=False), make_normalization(is_synchronized=True)
        runs = {BY_ALLREDUCES: by_hand, SYNC: ours}
        return self._compare("SyncBatchNorm, 64 x 32 x 32 x 32", runs, BY_ALLREDUCES, 1.1, 1)

    def _compare(self, title: str, runs: dict[str, Run], peer: str, factor: float, operations: int) -> Case:
        """Targets: each other contender takes at most a multiple of the peer's time."""
        ours = frozenset(runs) - {peer}
        targets = [Target(name, peer, factor) for name in sorted(ours)]
        blocks = {name: time_each(run, operations) for name, run in runs.items()}
        return Case(_name(title), blocks, (peer,), _limit(targets), ours)

    def _make_single(
        self,
        title: str,
        work: Work,
        targets: Sequence[Target],
        beside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Case:
        makers = {GLOO: use_gloo, **{name: use_api(api) for name, api in self._apis.items()}}
        blocks = {name: make_block(work, make, beside) for name, make in makers.items()}
        return Case(_name(title), blocks, (GLOO,), _limit(targets), frozenset({OURS}))


def _name(title: str) -> str:
    return f"{title}, N={dist.get_world_size()}"


def _limit(targets: Sequence[Target]) -> Sequence[Target]:
    return targets if dist.get_world_size() == _SIZE_OF_TARGETS else ()


def main() -> int:
    """Start the jobs; in a worker, measure."""
    parser = make_parser(__doc__, _SIZES)
    parser.add_argument("--cases", nargs="+", choices=NAMES, default=NAMES, help="only these")
    arguments = parser.parse_args()
    if not is_worker():
        return run_jobs(Path(__file__).resolve(), arguments.np, arguments.json)
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    cases = Cases(join_horovod())
    makers = {name: getattr(cases, f"make_{name}") for name in NAMES}
    run_cases((makers[name]() for name in arguments.cases), arguments)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
