"""init() and shutdown(): numbers, repetition, refusals, and what is left behind."""

import gc
import os
import subprocess
import sys
import traceback

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool, ask_child
from worker_runtime.errors import ForeignWorldError, InitializationError
from worker_runtime.membership.runtime import Runtime


def test_a_world_of_one_needs_no_launcher_no_socket_and_no_grpc() -> None:
    code = (
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
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HVD_", "HOROVOD_"))}
    words = [sys.executable, "-W", "error", "-c", code]
    finished = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.stdout, finished.stderr, finished.returncode) == ("0 1 0 1 0 1\n", "", 0)


def test_a_foreign_world_that_cannot_meet_is_refused_and_never_trained_alone() -> None:
    with pytest.raises(ForeignWorldError, match=r"^Horovod initialization failed: torchrun started .* one of 2"):
        Runtime(lambda _: pytest.fail("no job to join")).init({"RANK": "0", "WORLD_SIZE": "2"})


def test_damaged_variables_of_hvdrun_are_an_error_and_no_world_of_one() -> None:
    with pytest.raises(InitializationError, match=r"^Horovod initialization failed: the HVD_") as caught:
        Runtime(lambda _: pytest.fail("nothing to connect to")).init({"HVD_JOB": "job"})
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


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
        assert all(late <= early for early, late in zip(counts[0], counts[-1], strict=True)), counts
        assert sums == [[2.0, 2.0, 2.0]] * 20


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

        def drop() -> int:
            kept.clear()
            return gc.collect()

        return type(ask_child(drop)), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [(int, 2.0)] * 2


def list_numbers() -> object:
    """All that a forked child may ask for."""
    everyone = hvd.global_process_set
    return (
        (hvd.is_initialized(), hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        (hvd.cross_rank(), hvd.cross_size(), everyone.process_set_id),
        (everyone.rank(), everyone.size(), everyone.ranks, everyone.included()),
    )


def test_a_forked_child_knows_the_numbers(ranks: RankPool) -> None:
    def body() -> object:
        own = hvd.add_process_set([1])
        hvd.allreduce_async(torch.ones(1), name="in flight")

        def ask() -> object:
            return list_numbers(), own.rank() if hvd.rank() == 1 else None, own.included(), own.process_set_id

        def ask_grandchild() -> object:
            return ask_child(ask)  # as a DataLoader within a child

        expected = ask()
        return ask_child(ask) == expected, ask_child(ask_grandchild) == expected, expected[0][0]

    assert ranks.run(body, size=3) == [(True, True, (True, rank, 3, rank, 3)) for rank in range(3)]


def test_a_forked_child_cannot_communicate(ranks: RankPool) -> None:
    def body() -> object:
        model = torch.nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
        handle = hvd.allreduce_async(torch.ones(1), name="in flight") if hvd.rank() == 0 else 0
        calls = {
            "allreduce": lambda: hvd.allreduce(torch.ones(1)),
            "named": lambda: hvd.allreduce(torch.ones(1), name="x"),
            "async": lambda: hvd.allreduce_async(torch.ones(1)),
            "barrier": hvd.barrier,
            "join": hvd.join,
            "object": lambda: hvd.broadcast_object(1),
            "add_process_set": lambda: hvd.add_process_set([0]),
            "optimizer": lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1)),
            "step": lambda: (model(torch.ones(1, 2)).sum().backward(), optimizer.step()),
            "parent's handle": lambda: hvd.synchronize(handle) if handle else hvd.barrier(),
        }
        reported = {name: ask_child(call) for name, call in calls.items()}
        if hvd.rank() == 1:
            handle = hvd.allreduce_async(torch.ones(1), name="in flight")
        return reported, hvd.synchronize(handle).tolist(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    for rank, (reported, *rest) in enumerate(ranks.run(body)):
        words = f"this process was forked from rank {rank}, and is not connected to the other ranks"
        assert len(reported) == 10
        assert {
            name: text for name, (kind, text) in reported.items() if kind != "ForkedError" or words not in text
        } == {}
        assert rest == [[1.0], 2.0]


def test_a_forked_child_does_not_take_its_parents_place(ranks: RankPool) -> None:
    def body() -> object:
        def question() -> object:
            with pytest.raises(ValueError, match=rf"its parent process {os.getppid()} is already rank"):
                hvd.init()
            assert hvd.rank() >= 0
            hvd.shutdown()
            assert not hvd.is_initialized()
            with pytest.raises(ValueError, match="is already rank"):
                hvd.init()
            return "refused"

        return ask_child(question), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [("refused", 2.0)] * 2


def test_the_error_in_a_spawned_child_names_the_member(ranks: RankPool) -> None:
    def body() -> object:
        script = "import worker_runtime.torch as hvd\ntry: hvd.init()\nexcept ValueError as error: print(error)"
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
        expected = f"its parent process {os.getpid()} is already rank {hvd.rank()} of the job"
        is_right = expected in ended.stdout and "start another script with 'hvdrun -np 1 python SCRIPT'" in ended.stdout
        return is_right or ended.stdout, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [(True, 2.0)] * 2


def test_a_forked_child_of_a_world_of_one_may_be_one_itself() -> None:
    def question() -> object:
        with pytest.raises(hvd.HorovodInternalError, match="forked from rank 0"):
            hvd.barrier()
        hvd.init()
        return hvd.allreduce(torch.ones(1)).item()

    hvd.init()
    try:
        assert ask_child(question) == 1.0
        assert hvd.allreduce(torch.ones(1)).item() == 1.0
    finally:
        hvd.shutdown()
