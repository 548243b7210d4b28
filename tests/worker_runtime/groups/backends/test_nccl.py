"""NCCL's groups: how they are made, waited for and aborted, with a stub in NCCL's place; and on GPUs, themselves."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

import worker_runtime.torch as hvd
from tests.worker_runtime.groups.backends.stubs import LIMIT, StubGroup, StubWork
from tests.worker_runtime.ranks import RankPool
from worker_runtime.groups.backends import nccl
from worker_runtime.groups.backends.nccl import Nccl, NcclGroup, SharedDeviceError, StreamWork
from worker_runtime.groups.torch_groups import await_work

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
FORMER = "NCCL_ASYNC_ERROR_HANDLING"
TRY_LIMIT = "TORCH_NCCL_NONBLOCKING_TIMEOUT"
SHARED = "ncclInvalidUsage: Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"


class StubNccl(StubGroup):
    """What torch would make, as it was made."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__()
        store.set("key", b"value")
        self.made = rank, size, options.config.blocking, options._timeout
        self.handling = {name: os.environ.get(name) for name in (HANDLING, FORMER)}

    class Options:
        """As torch's."""

        def __init__(self) -> None:
            self.config = SimpleNamespace(blocking=1)
            self._timeout: timedelta | None = None


@pytest.fixture(autouse=True)
def _nccl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupNCCL", StubNccl, raising=False)
        for name in (HANDLING, FORMER):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(TRY_LIMIT, "10")  # which a group sets, for the whole process


def make(store: HashStore | None = None) -> Any:
    """The stub within a group."""
    group, _ = Nccl(lambda name, *_: PrefixStore(name, store or HashStore()), 1, LIMIT).make(
        "set/3/cuda", 1, 4, "cuda", timedelta(seconds=1)
    )
    return vars(group)["_group"]


def test_a_group_connects_without_blocking_under_a_prefix_of_its_own() -> None:
    store = HashStore()
    assert make(store).made == (1, 4, 0, LIMIT)
    assert store.get("set/3/cuda/key") == b"value"


def test_torchs_handling_of_errors_is_off_while_a_group_is_made() -> None:
    assert make().handling == {HANDLING: "0", FORMER: None}
    assert HANDLING not in os.environ


@pytest.mark.parametrize("name", [HANDLING, FORMER])
def test_the_user_s_setting_stands(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert make().handling == {HANDLING: None, FORMER: None} | {name: "1"}
    assert os.environ[name] == "1"


def test_calls_arrive_and_the_works_never_see_a_time_limit() -> None:
    inner = StubGroup()
    group = NcclGroup(inner, 0, LIMIT)
    x = torch.ones(2)
    works = [
        group.allreduce(x, dist.ReduceOp.SUM),
        group.broadcast(x, 1),
        group.allgather([x, x], x),
        group.alltoall_base(x, x, [1, 1], [1, 1]),
    ]
    assert inner.names == ["allreduce", "broadcast", "allgather", "alltoall_base"]
    for work in works:
        await_work(work)  # in slices, with which torch's own wait would abort the group
    assert inner.work.limits == [None] * len(works)
    group._set_default_timeout(LIMIT)
    group.shutdown()
    assert inner.names[-2:] == ["_set_default_timeout", "shutdown"]


def test_a_wait_does_not_hold_up_the_host() -> None:
    running = SimpleNamespace(wait=lambda: True, is_completed=lambda: False)
    work = StreamWork(running, NcclGroup(StubGroup(), 0, LIMIT))
    assert work.wait(timedelta(days=1))
    assert not work.is_completed()


def test_where_the_job_outlives_its_workers_a_wait_is_for_the_end() -> None:
    """Else a step would be called done whose results a lost peer has spoilt."""
    left = [False, False, False]
    running = SimpleNamespace(wait=lambda: True, is_completed=lambda: not left or left.pop())
    await_work(StreamWork(running, NcclGroup(StubGroup(), 0, LIMIT), holds_host=True))
    assert left == []
    endless = StreamWork(
        SimpleNamespace(wait=lambda: True, is_completed=lambda: False),
        NcclGroup(StubGroup(), 0, LIMIT),
        holds_host=True,
    )
    with pytest.raises(RuntimeError, match="did not complete in time"):
        endless.wait(timedelta(milliseconds=1))


def test_an_abort_ends_a_wait_and_nothing_of_it_counts_as_done() -> None:
    """Of a work that was aborted torch says that it ended well."""
    group = NcclGroup(StubGroup(), 0, LIMIT, holds_host=True)
    is_over = threading.Event()
    running = SimpleNamespace(wait=lambda: True, is_completed=is_over.is_set)
    work = StreamWork(running, group, holds_host=True)
    timer = threading.Timer(0.05, lambda: (group.shut_down()(), is_over.set()))
    timer.start()
    with pytest.raises(RuntimeError, match="was aborted since a peer was lost"):
        await_work(work)
    timer.join()
    with pytest.raises(RuntimeError, match="was aborted since a peer was lost"):
        work.wait()


class NcclWork:
    """A work as torch's of NCCL: its wait raises an error that a program has looked for; `is_success` raises always."""

    def __init__(self, error: str = "") -> None:
        self._error = error
        self._found = ""

    def is_completed(self) -> bool:
        """Look for an error."""
        self._found = self._error
        return True

    def is_success(self) -> bool:
        """As `WorkNCCL::isSuccess()`."""
        raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")

    def wait(self) -> bool:
        """Raise what was found."""
        if self._found:
            raise RuntimeError(self._found)
        return True


@pytest.mark.parametrize("holds_host", [False, True])
def test_a_work_that_has_failed_raises_its_error(*, holds_host: bool) -> None:
    work = StreamWork(NcclWork("remote process exited"), NcclGroup(StubGroup(), 0, LIMIT), holds_host=holds_host)
    with pytest.raises(RuntimeError, match="remote process exited"):
        await_work(work)


@pytest.mark.parametrize("holds_host", [False, True])
def test_a_work_that_has_completed_is_done(*, holds_host: bool) -> None:
    await_work(StreamWork(NcclWork(), NcclGroup(StubGroup(), 0, LIMIT), holds_host=holds_host))


def test_the_error_for_two_workers_on_one_gpu_says_what_to_do() -> None:
    group = NcclGroup(StubGroup(), 3, LIMIT)
    vars(group)["_group"].__dict__["allreduce"] = fail
    with pytest.raises(
        SharedDeviceError, match=r"of local rank 3, uses cpu\).*torch\.cuda\.set_device\(hvd\.local_rank"
    ):
        group.allreduce(torch.ones(1), dist.ReduceOp.SUM)


def fail(*_: object) -> StubWork:
    raise RuntimeError(SHARED)


def test_other_errors_are_left_alone() -> None:
    inner = ConnectingGroup("no memory", tries=1)
    with pytest.raises(RuntimeError, match=r"^no memory$"):
        NcclGroup(inner, 0, LIMIT).broadcast(torch.ones(1), 0)


class ConnectingGroup:
    """A group whose first tries to connect fail."""

    def __init__(self, error: str, tries: int) -> None:
        self.is_trying = threading.Event()
        self._error = error
        self._tries = tries

    def broadcast(self, *_: object) -> StubWork:
        """Try."""
        self.is_trying.set()
        if self._tries > 0:
            self._tries -= 1
            raise RuntimeError(self._error)
        return StubWork()

    def abort(self) -> None:
        """Do nothing."""


# As torch writes them: while the communicator connects, and when the operation has begun.
CONNECTS = "NCCL timeout in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:197"
HAS_BEGUN = "NCCL timeout in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3825"


def test_an_operation_waits_for_peers_that_connect_late() -> None:
    work = NcclGroup(ConnectingGroup(CONNECTS, tries=3), 0, LIMIT).broadcast(torch.ones(1), 0)
    await_work(work)


def test_an_abort_ends_the_wait_for_a_peer_that_never_connects() -> None:
    inner = ConnectingGroup(CONNECTS, tries=1 << 60)
    group = NcclGroup(inner, 0, LIMIT)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(group.broadcast, torch.ones(1), 0)
        assert inner.is_trying.wait(LIMIT.total_seconds())
        assert group.shut_down()()
        assert str(future.exception(LIMIT.total_seconds())) == CONNECTS


def test_the_wait_for_a_peer_that_never_connects_has_a_limit() -> None:
    group = NcclGroup(ConnectingGroup(CONNECTS, tries=1 << 60), 0, timedelta(milliseconds=1))
    with pytest.raises(RuntimeError, match="NCCL timeout"):
        group.broadcast(torch.ones(1), 0)


def test_an_operation_that_may_have_begun_is_not_tried_again() -> None:
    with pytest.raises(RuntimeError, match="NCCL timeout"):
        NcclGroup(ConnectingGroup(HAS_BEGUN, tries=1), 0, LIMIT).broadcast(torch.ones(1), 0)


@pytest.mark.parametrize(("said", "limit"), [(None, "10"), ("77", "77")])
def test_torch_ends_a_try_to_connect_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch, said: str | None, limit: str
) -> None:
    monkeypatch.delenv(TRY_LIMIT, raising=False)
    if said is not None:
        monkeypatch.setenv(TRY_LIMIT, said)
    make()
    assert os.environ[TRY_LIMIT] == limit


def test_an_interruption_aborts_once_and_what_was_aborted_is_not_ended_again() -> None:
    inner = StubGroup()
    group = NcclGroup(inner, 0, LIMIT)
    assert group.shut_down()()
    assert group.shut_down()()
    group.shutdown()
    assert inner.names == ["abort"]


def test_a_group_is_aborted_if_its_end_fails() -> None:
    inner = StubGroup()
    vars(inner)["shutdown"] = fail
    NcclGroup(inner, 0, LIMIT).shutdown()
    assert inner.names == ["abort"]


def test_an_abort_that_does_not_return_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "ABORT_LIMIT_SECONDS", 0.01)
    release = threading.Event()
    group = NcclGroup(SimpleNamespace(abort=lambda: release.wait(LIMIT.total_seconds())), 0, LIMIT)
    assert not group.shut_down()()
    assert not group.shut_down()()
    assert not StreamWork(SimpleNamespace(), group).is_completed()  # decided without a call of torch, which would block
    thread = vars(group)["_abort"]
    assert thread.is_alive()
    release.set()
    thread.join(LIMIT.total_seconds())
    assert not thread.is_alive()
    assert StreamWork(NcclWork(), group).is_completed()


def abort(group: NcclGroup) -> bool:
    """Begin, and wait for the end."""
    return group.shut_down()()


def test_an_abort_waits_for_a_query_of_torch() -> None:
    """Torch would answer the query after the abort, and hold Python's lock meanwhile."""
    inner, is_asked, may_answer = StubGroup(), threading.Event(), threading.Event()
    group = NcclGroup(inner, 0, LIMIT)

    def is_completed() -> bool:
        is_asked.set()
        assert may_answer.wait(LIMIT.total_seconds())
        return inner.names == []

    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(StreamWork(SimpleNamespace(is_completed=is_completed), group).is_completed)
        assert is_asked.wait(LIMIT.total_seconds())
        end = threads.submit(abort, group)
        threading.Timer(0.05, may_answer.set).start()
        assert answer.result(LIMIT.total_seconds())
        assert end.result(LIMIT.total_seconds())
    assert inner.names == ["abort"]


def run_operations() -> dict[str, list[float]]:
    """Each operation, its result used on the current stream without waiting for it."""
    x = torch.full((1 << 20,), hvd.rank() + 1.0)
    with nullcontext() if x.is_cpu else torch.cuda.stream(torch.cuda.Stream()):
        if x.is_cuda:
            torch.cuda._sleep(50_000_000)  # the inputs are far from ready when the operation is asked for
        y = x * 2
        reduced = hvd.allreduce(y, op=hvd.Sum) + 1
        gathered = hvd.allgather(y[:2].reshape(1, 2)) + 1
        copied = hvd.broadcast(y, root_rank=hvd.size() - 1) + 1
        return {
            "allreduce": reduced.unique().tolist(),
            "allgather": gathered.flatten().tolist(),
            "broadcast": copied.unique().tolist(),
        }


RESULTS = {
    1: {"allreduce": [3.0], "allgather": [3.0, 3.0], "broadcast": [3.0]},
    2: {"allreduce": [7.0], "allgather": [3.0, 3.0, 5.0, 5.0], "broadcast": [5.0]},
    3: {"allreduce": [13.0], "allgather": [3.0, 3.0, 5.0, 5.0, 7.0, 7.0], "broadcast": [7.0]},
    4: {"allreduce": [21.0], "allgather": [3.0, 3.0, 5.0, 5.0, 7.0, 7.0, 9.0, 9.0], "broadcast": [9.0]},
}


@pytest.mark.devices
@pytest.mark.parametrize("size", sorted(RESULTS, reverse=True))
def test_operations_follow_the_stream_of_their_caller(ranks: RankPool, size: int) -> None:
    assert ranks.run(run_operations, size=size) == [RESULTS[size]] * size


@pytest.mark.devices
def test_through_gloo_ranks_may_share_a_device(ranks: RankPool) -> None:
    def body() -> object:
        hvd.shutdown()
        os.environ["HVD_BACKEND"] = "gloo"
        hvd.init()
        return run_operations()

    assert ranks.run(body) == [RESULTS[2]] * 2
