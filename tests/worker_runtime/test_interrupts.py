"""Signals and threads on real ranks: a rank that is interrupted disturbs no other."""

import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.waiting import wait_until
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api import functions

LARGE = 1_000_000  # elements: far more than travel inside a question


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """What one rank makes and the other waits for."""
    return tmp_path / "go"


def interrupt(wait: Callable[[], object], handler: Callable[..., object] = signal.default_int_handler) -> object:
    """Have a handler called while this thread waits for other ranks."""
    signal.signal(signal.SIGALRM, handler)
    thread = threading.get_ident()

    def look() -> None:
        looks = 0
        while looks < 3:  # once, it may not be about to wait
            time.sleep(0.05)
            is_waiting = sys._current_frames()[thread].f_code.co_name in {"receive", "_await_turn"}
            looks = looks + 1 if is_waiting else 0
        signal.pthread_kill(thread, signal.SIGALRM)

    threading.Thread(target=look, daemon=True).start()
    return wait()


def test_an_interrupted_wait_may_be_repeated_and_others_do_not_notice(ranks: RankPool, go: Path) -> None:
    """Ctrl-C in a notebook: the operation is still under way, and its handle is kept."""

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            wait_until(go.exists, "rank 0's interrupt")
            return [hvd.allreduce(torch.full((count,), 3.0), name=str(count)).sum().item() for count in (2, LARGE)]
        handles = [hvd.allreduce_async(torch.full((count,), 1.0), name=str(count)) for count in (2, LARGE)]
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: hvd.synchronize(handles[1]))
        go.touch()
        return [hvd.synchronize(handle).sum().item() for handle in handles]

    assert ranks.run(body) == [[4.0, 2.0 * LARGE]] * 2


def test_what_an_interrupted_call_has_begun_goes_on_while_its_rank_is_elsewhere(
    ranks: RankPool, go: Path, tmp_path: Path
) -> None:
    """The result is lost on this rank alone."""
    done = tmp_path / "done"

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            wait_until(go.exists, "rank 0's interrupts")
            values = [hvd.allreduce(torch.ones(count), name=str(count), op=hvd.Sum)[0].item() for count in (2, LARGE)]
            done.touch()
            return [*values, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]
        for count in (2, LARGE):
            with pytest.raises(KeyboardInterrupt):
                interrupt(lambda count=count: hvd.allreduce(torch.ones(count), name=str(count), op=hvd.Sum))
        go.touch()
        wait_until(done.exists, "rank 1's results")
        return [2.0, 2.0, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]

    assert ranks.run(body) == [[2.0] * 3] * 2


@pytest.mark.parametrize("count", [3, 50_000], ids=["inside questions", "through gloo"])
def test_interrupts_at_any_moment_end_in_right_results_or_in_a_clear_error(ranks: RankPool, count: int) -> None:
    """Where an operation is just begun for gloo nobody can tell whether it was: then the group ends, on all ranks."""

    def body(seed: int) -> tuple[int, int]:
        chance = random.Random(seed)  # noqa: S311 - no secret
        right = interrupts = 0

        def wait(handle: int) -> torch.Tensor | None:
            nonlocal interrupts
            for _ in range(
                20 if hvd.rank() == 0 else 0
            ):  # else it would never end where an attempt takes a millisecond
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3))
                        return hvd.synchronize(handle)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
                if handle not in functions._handle_map:
                    return None  # the interrupt came while the result was handed over
            return hvd.synchronize(handle)

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for index in range(200):
                x = torch.full((count,), float(index + hvd.rank()))
                result = wait(hvd.allreduce_async(x, name=str(index), op=hvd.Sum))
                assert result is None or result[0].item() == 2 * index + 1
                right += result is not None
            hvd.barrier()
        except hvd.HorovodInternalError as error:
            assert re.search("interrupted|rank 0 was cut off", str(error))  # noqa: PT017 - it need not come
        return right, interrupts

    right = interrupts = 0
    for seed in range(100):  # a world may end early
        (first, count_of_first), (second, _) = ranks.run(body, seed)
        right, interrupts = right + min(first, second), interrupts + count_of_first
        if right >= 50 and interrupts >= 20:
            return
    pytest.fail(f"{right} right results, {interrupts} interrupts")


def test_a_handler_may_shut_down_while_its_thread_waits(ranks: RankPool, go: Path) -> None:
    def body() -> None:
        hvd.barrier()
        if hvd.rank() == 1:
            wait_until(go.exists, "rank 0's shutdown")
            return
        hvd.allreduce_async(torch.ones(1), name="pending")
        with pytest.raises(hvd.HorovodInternalError, match="shut down"):
            interrupt(lambda: hvd.allreduce(torch.ones(1), name="waiting"), lambda *_: hvd.shutdown())
        go.touch()

    ranks.run(body)


@pytest.mark.parametrize("is_warm", [False, True])
def test_after_a_step_that_was_interrupted_ranks_are_in_step_again_soon(
    ranks: RankPool, go: Path, *, is_warm: bool
) -> None:
    """What the interrupted step has asked for is under way still, under names that the next step uses again."""

    def body() -> object:
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])

        def step() -> None:
            optimizer.zero_grad()
            (weight.sum() * (hvd.rank() + 1)).backward()
            optimizer.step()

        for _ in range(3 if is_warm else 0):
            step()
        if hvd.rank() == 0:
            with pytest.raises(KeyboardInterrupt):
                interrupt(step)
            go.touch()
        else:
            wait_until(go.exists, "rank 0's interrupt")
            if is_warm:
                step()  # all that it needs of rank 0 was sent
        steps = failures = 0
        while steps < 3 and failures < 3:
            try:
                step()
                steps += 1
            except hvd.HorovodInternalError:
                failures += 1
        return failures, weight.grad.tolist()

    assert ranks.run(body) == [(1, [1.5] * 3)] * 2
