"""Signals and threads on real ranks: whoever is interrupted, or waits beside others, disturbs nobody."""

import random
import re
import signal
import threading
import time

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch import ops as mpi_ops

LARGE = 1_000_000  # elements: far more than travel inside a question
LIMIT_SECONDS = 1.0  # for what is not to wait


def test_an_interrupted_wait_may_be_repeated_and_others_do_not_notice(ranks: RankPool) -> None:
    """Ctrl-C in a notebook: the operation is still under way, and its handle is kept."""

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.4)  # what rank 0 is interrupted in
            return [hvd.allreduce(torch.full((count,), 3.0), name=str(count)).sum().item() for count in (2, LARGE)]
        handles = [hvd.allreduce_async(torch.full((count,), 1.0), name=str(count)) for count in (2, LARGE)]
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handles[1])
        return [hvd.synchronize(handle).sum().item() for handle in handles]

    assert ranks.run(body) == [[4.0, 2.0 * LARGE]] * 2


def test_what_an_interrupted_call_has_begun_goes_on_and_so_do_the_others(ranks: RankPool) -> None:
    """The result is lost on this rank alone."""

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.3)  # what rank 0 is interrupted in
            began = time.monotonic()
            values = [hvd.allreduce(torch.ones(count), name=str(count), op=hvd.Sum)[0].item() for count in (2, LARGE)]
            assert time.monotonic() - began < LIMIT_SECONDS  # though rank 0 is elsewhere
            return [*values, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for count in (2, LARGE):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                hvd.allreduce(torch.ones(count), name=str(count), op=hvd.Sum)
        time.sleep(2)  # is elsewhere
        return [2.0, 2.0, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]

    assert ranks.run(body) == [[2.0] * 3] * 2


def test_interrupts_at_any_moment_end_in_right_results_or_in_a_clear_error(ranks: RankPool) -> None:
    """Where an operation is just begun for gloo nobody can tell whether it was: then the group ends, on all ranks."""

    def wait(handle: int) -> torch.Tensor | None:
        while handle in mpi_ops._handle_map:  # else the interrupt came while the result was handed over
            try:
                try:
                    if hvd.rank() == 0:
                        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))  # noqa: S311 - no secret
                    return hvd.synchronize(handle)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
        return None

    def body() -> object:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for index in range(200):
                x = torch.full(((3, 50_000)[index % 3 == 2],), float(index + hvd.rank()))
                handle = hvd.allreduce_async(x, name=str(index), op=hvd.Sum)
                result = wait(handle)
                assert result is None or result[0].item() == 2 * index + 1
            hvd.barrier()
        except hvd.HorovodInternalError as error:
            return re.search("interrupted|rank 0 was lost", str(error)) is not None
        return True

    assert ranks.run(body) == [True, True]


def test_a_handler_may_shut_down_while_its_thread_waits(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.3)  # what rank 0 waits for in vain
            return 0.0
        hvd.allreduce_async(torch.ones(1), name="pending")
        times = []

        def answer(*_: object) -> None:
            times.append(time.monotonic())
            hvd.shutdown()
            times.append(time.monotonic())

        signal.signal(signal.SIGALRM, answer)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            hvd.allreduce(torch.ones(1), name="waiting")
        assert time.monotonic() - times[0] < LIMIT_SECONDS
        return times[1] - times[0]

    assert ranks.run(body)[0] < LIMIT_SECONDS


def test_a_handler_may_run_a_collective_while_its_thread_waits_for_another(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            first = hvd.allreduce(torch.ones(1), name="of the handler", op=hvd.Sum).item()
            return first, hvd.allreduce(torch.ones(1), name="of the thread", op=hvd.Sum).item()
        results = []
        signal.signal(
            signal.SIGALRM,
            lambda *_: results.append(hvd.allreduce(torch.ones(1), name="of the handler", op=hvd.Sum).item()),
        )
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        second = hvd.allreduce(torch.ones(1), name="of the thread", op=hvd.Sum).item()
        return results[0], second

    assert ranks.run(body) == [(2.0, 2.0)] * 2


def test_threads_of_one_rank_do_not_wait_for_each_other(ranks: RankPool) -> None:
    """One waits for what comes late; the other's operations are sent, and answered, meanwhile."""

    def body() -> object:
        late = hvd.add_process_set([0, 1])
        if hvd.rank() == 2:
            return [hvd.allreduce(torch.ones(1), name=str(index)).item() for index in range(20)]
        thread = threading.Thread(target=lambda: hvd.allreduce(torch.ones(1), name="late", process_set=late))
        if hvd.rank() == 0:
            thread.start()
        began = time.monotonic()
        values = [hvd.allreduce(torch.ones(1), name=str(index)).item() for index in range(10)]
        handles = [hvd.allreduce_async(torch.ones(1), name=str(index)) for index in range(10, 20)]
        values += [hvd.synchronize(handle).item() for handle in handles]
        assert time.monotonic() - began < LIMIT_SECONDS
        if hvd.rank() == 1:
            thread.start()
        thread.join()
        return values

    assert ranks.run(body, size=3) == [[1.0] * 20] * 3


def test_a_thread_that_waits_does_not_speak_for_another_that_will_ask_later(ranks: RankPool) -> None:
    """Each rank waits for more than a second for the other; but one of them has a thread that computes."""

    def body() -> object:
        results = []

        def compute() -> None:
            time.sleep(2)  # is at work, and will ask
            results.append(hvd.allreduce(torch.ones(1), name="of the thread", op=hvd.Sum).item())

        if hvd.rank() == 1:
            results.append(hvd.allreduce(torch.ones(1), name="of the thread", op=hvd.Sum).item())
            return [*results, hvd.allreduce(torch.ones(1), name="of the main thread", op=hvd.Sum).item()]
        thread = threading.Thread(target=compute)
        thread.start()
        results.append(hvd.allreduce(torch.ones(1), name="of the main thread", op=hvd.Sum).item())
        thread.join()
        return results

    assert ranks.run(body) == [[2.0, 2.0]] * 2
