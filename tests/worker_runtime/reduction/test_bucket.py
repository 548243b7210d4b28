"""A bucket is one operation, which says what it is of."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters
from tests.worker_runtime.reduction.threads import ThreadExecutor, World
from worker_runtime.errors import HorovodInternalError
from worker_runtime.reduction.bucket import Bucket
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.plan import make_buckets
from worker_runtime.reduction.seat import Seat
from worker_runtime.reduction.settings import Settings


def make_bucket(executor: ThreadExecutor) -> tuple[Seat, Bucket]:
    entries = [Entry(parameter, f"p{index}", 1) for index, parameter in enumerate(make_parameters(2))]
    seat = Seat.take(executor, 0)
    (bucket,) = make_buckets(entries, Settings(), seat, first_number=4)
    for entry in entries:
        entry.parameter.grad = torch.full((4,), executor.rank + 1.0)
    return seat, bucket


def test_it_is_asked_for_under_its_number_with_its_note_and_may_be_used_again(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        seat, bucket = make_bucket(executor)
        for _ in range(2):
            assert bucket.handle is None
            assert bucket.finish() is None
            for entry in bucket.entries:
                bucket.take(entry)
                bucket.missing -= 1
            bucket.ask(seat)
            terms = bucket.finish()
            bucket.give()
            bucket.reset()
            assert bucket.missing == 2
        return executor.asked, terms.members, bucket.entries[0].parameter.grad.tolist(), executor.notes[0]

    for asked, members, gradient, note in world.run(body):
        assert asked == ["allreduce.optimizer.1.bucket.4"] * 2
        assert members == (0, 1)
        assert gradient == [1.5] * 4
        assert note.startswith("2 gradients from 'p1' [4] to 'p0' [4] with 8 elements (")


def test_a_remark_that_not_all_make_is_an_error_for_all(world: World) -> None:
    def body(executor: ThreadExecutor) -> None:
        seat, bucket = make_bucket(executor)
        for entry in bucket.entries:
            bucket.take(entry)
        bucket.ask(seat, remark="once" if executor.rank else "")
        with pytest.raises(HorovodInternalError, match="once"):
            bucket.finish()

    world.run(body)
