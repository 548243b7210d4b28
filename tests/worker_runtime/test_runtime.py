"""init() and shutdown(): numbers, repetition, refusals, and what is left behind."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.errors import ForeignWorldError, InitializationError
from worker_runtime.runtime import Runtime


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HVD_", "HOROVOD_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_world_of_one_needs_no_launcher_no_socket_and_no_grpc() -> None:
    finished = run_python(
        "import os, sys, worker_runtime\n"
        "assert 'torch' not in sys.modules and 'mxnet' not in sys.modules\n"
        "import worker_runtime.torch as hvd\n"
        "hvd.init()\n"
        "print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())\n"
        "links = [os.readlink(entry.path) for entry in os.scandir('/proc/self/fd') if os.path.islink(entry.path) and "
        "os.path.exists(f'/proc/self/fd/{entry.name}')]\n"
        "assert not any(link.startswith('socket:') for link in links), links\n"
        "assert 'grpc' not in sys.modules\n"
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("0 1 0 1 0 1\n", "", 0)


def test_a_foreign_world_that_cannot_meet_is_refused_and_never_trained_alone() -> None:
    with pytest.raises(ForeignWorldError, match=r"^Horovod initialization failed: torchrun started .* one of 2"):
        Runtime(lambda _: pytest.fail("no job to join")).init({"RANK": "0", "WORLD_SIZE": "2"})


def test_damaged_variables_of_hvdrun_are_an_error_and_no_world_of_one() -> None:
    with pytest.raises(InitializationError, match=r"^Horovod initialization failed: the HVD_"):
        Runtime(lambda _: pytest.fail("nothing to connect to")).init({"HVD_JOB": "job"})


@pytest.mark.parametrize("call", [hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size])
def test_a_number_asked_before_init_is_a_value_error(call: Callable[[], int]) -> None:
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd.init\(\)\.$"):
        call()


def test_a_collective_before_init_is_an_internal_error() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))


def test_every_rank_has_its_numbers_and_init_may_be_repeated(ranks: RankPool) -> None:
    def body() -> object:
        hvd.init()
        return hvd.is_initialized(), hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()

    assert ranks.run(body, size=3) == [(True, rank, 3, rank, 3) for rank in range(3)]


def test_init_and_shutdown_in_turn_leave_no_thread_and_no_descriptor(ranks: RankPool) -> None:
    def count() -> object:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a snapshot

    def body() -> object:
        counts, sums = [], []
        for _ in range(20):
            hvd.shutdown()
            assert not hvd.is_initialized()
            counts.append(count())
            hvd.init()
            sums.append(hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist())
        hvd.shutdown()
        hvd.shutdown()
        return counts, sums

    for counts, sums in ranks.run(body):
        assert len(set(counts)) == 1
        assert sums == [[2.0, 2.0, 2.0]] * 20


def test_a_forked_child_may_end_without_touching_its_parents_group(ranks: RankPool) -> None:
    def body() -> object:
        child = os.fork()
        if child == 0:
            assert not hvd.is_initialized()
            sys.exit(0)  # runs the exit handlers, as a careless child would
        assert os.waitpid(child, 0)[1] == 0
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    def run_in_child() -> object:
        return body()

    assert ranks.run(run_in_child) == [2.0, 2.0]


def test_a_forked_child_may_drop_the_error_of_an_earlier_generation(ranks: RankPool) -> None:
    """An error whose traceback held gloo's device crashed the child: torch joins a thread that the child lacks."""

    def body() -> object:
        kept: list[BaseException] = []
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError) as raised:
                hvd.allreduce(torch.ones(1))
            kept.append(raised.value)
            del raised
        hvd.shutdown()
        hvd.init()
        child = os.fork()
        if child == 0:
            kept.clear()
            gc.collect()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return status, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [(0, 2.0), (0, 2.0)]
