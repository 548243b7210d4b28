"""One rank makes a mistake; after one refusal all continue as if nothing had happened."""

import re
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.documentation import read
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api.calls import reports_failure

Call = Callable[[str | None], object]

TWO, THREE = torch.zeros(2), torch.zeros(3)
RIGHT: dict[str, Call] = {
    "alltoall": lambda name: hvd.alltoall(TWO, name=name),
    "allreduce": lambda name: hvd.allreduce(TWO, name=name),
    "allgather": lambda name: hvd.allgather(TWO, name=name),
    "broadcast": lambda name: hvd.broadcast(TWO, 0, name=name),
    "reducescatter": lambda name: hvd.reducescatter(TWO, name=name),
    "object": lambda name: hvd.broadcast_object("x", 0, name=name),
    "barrier": lambda _: hvd.barrier(),
    "process set": lambda _: hvd.remove_process_set(hvd.add_process_set([0])),
}
MISTAKES: dict[str, tuple[str, Call]] = {  # which call it is, and the wrong one
    "rows": ("alltoall", lambda name: hvd.alltoall(THREE, name=name)),
    "op": ("allreduce", lambda name: hvd.allreduce(TWO, op=99, name=name)),
    "no tensor": ("allreduce", lambda name: hvd.allreduce("text", name=name)),
    "too few": ("allgather", lambda name: hvd.allgather(name=name)),
    "an argument too many": ("allgather", lambda name: hvd.allgather(TWO, name=name, extra=1)),
    "root": ("broadcast", lambda name: hvd.broadcast(TWO, 7, name=name)),
    "differentiable": ("alltoall", lambda name: hvd.alltoall(torch.zeros(3, requires_grad=True), name=name)),
    "asynchronous": ("reducescatter", lambda name: hvd.reducescatter_async(TWO, op=hvd.Max, name=name)),
    "object": ("object", lambda name: hvd.broadcast_object("x", 5, name=name)),
    "barrier": ("barrier", lambda _: hvd.barrier(extra=1)),
    "process set": ("process set", lambda _: hvd.add_process_set([0, 99])),
    "no process set": ("allreduce", lambda name: hvd.allreduce(TWO, name=name, process_set=7)),
    "asynchronous, no set": ("allgather", lambda name: hvd.allgather_async(TWO, name=name, process_set=None)),
    "unknown set": ("broadcast", lambda name: hvd.broadcast(TWO, 0, name=name, process_set=hvd.ProcessSet([1]))),
    "object, no set": ("object", lambda name: hvd.broadcast_object("x", 0, name=name, process_set="global")),
    "no ranks": ("process set", lambda _: hvd.add_process_set("text")),
}


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_call_that_fails_on_one_rank_is_refused_to_the_others_and_all_continue(
    ranks: RankPool, mistake: str, name: str | None
) -> None:
    """The others need not wait for a deadlock, which is found later and reported in other words."""

    def body() -> object:
        kind, wrong = MISTAKES[mistake]
        right = RIGHT[kind]
        try:
            (wrong if hvd.rank() == 1 else right)(name)
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:
            caught: Exception = error
        for _ in range(3):
            right(name)
            hvd.allreduce(torch.ones(1), name="loss")
            hvd.allreduce(torch.ones(1))
        return type(caught).__name__, str(caught)

    (mine, text), (theirs, cause) = ranks.run(body)
    assert mine == "OperationRefusedError"
    assert f"failed on rank 1 before anything was sent: {theirs}: {cause}" in text


def test_calls_that_fail_one_after_the_other_hold_no_rank_up_and_are_all_reported(ranks: RankPool) -> None:
    def body() -> object:
        failures = 0
        for op in (97, 98, 99):
            try:
                hvd.allreduce(TWO, op=op if hvd.rank() == 1 else hvd.Sum, name="a")
            except (ValueError, hvd.HorovodInternalError):
                failures += 1
        hvd.allgather(TWO, name="b")
        hvd.allreduce(TWO, name="a")
        return failures

    assert ranks.run(body) == [3] * 2


def test_of_several_operations_those_that_were_not_requested_are_given_up(ranks: RankPool) -> None:
    def body() -> object:
        good = {"a": torch.ones(1), "b": torch.ones(1)}
        for bad in (torch.ones(1).to_sparse(), None):
            with pytest.raises((ValueError, hvd.HorovodInternalError)):
                hvd.broadcast_parameters(good | {"b": bad} if hvd.rank() == 1 else good, 0)
            hvd.broadcast_parameters(good, 0)
        return True

    assert ranks.run(body) == [True] * 2


def test_a_process_set_that_one_rank_cannot_remove_stays(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0])
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="give a ProcessSet"):
            hvd.remove_process_set([0] if hvd.rank() == 1 else some)
        return some.process_set_id, hvd.remove_process_set(some), hvd.remove_process_set(some)

    assert ranks.run(body) == [(1, True, False)] * 2


def test_a_failure_after_the_request_concerns_no_other_rank(ranks: RankPool) -> None:
    def body() -> object:
        @reports_failure("allreduce")
        def reduce_and_fail(name: str) -> None:
            hvd.allreduce(torch.ones(1), name=name)
            raise ValueError("afterwards")

        if hvd.rank() == 0:
            with pytest.raises(ValueError, match="afterwards"):
                reduce_and_fail("x")
        else:
            hvd.allreduce(torch.ones(1), name="x")
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="x").item()

    assert ranks.run(body) == [2.0] * 2


@pytest.mark.parametrize("mistake", ["number", "ranks"])
def test_a_wrong_process_set_is_refused_in_the_set_that_has_its_number_or_ranks(ranks: RankPool, mistake: str) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 1])
        wrong = some.process_set_id if mistake == "number" else hvd.ProcessSet([1, 0])
        refused = 0
        for step in range(3):
            if some.included():
                try:
                    where = wrong if step == 1 and hvd.rank() == 1 else some
                    hvd.allreduce(torch.ones(1), process_set=where)
                except (ValueError, hvd.HorovodInternalError) as error:
                    assert hvd.rank() == 1 or "failed on rank 1" in str(error)  # noqa: PT017 - either may come
                    refused += 1
            hvd.allreduce(torch.ones(1))
        return refused

    assert ranks.run(body, size=3) == [1, 1, 0]


def test_a_wrong_call_of_a_rank_that_is_no_member_refuses_no_operation(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 1])
        if hvd.rank() == 2:
            with pytest.raises(ValueError, match="not a member"):
                hvd.allreduce(torch.ones(1), name="x", process_set=some)
            with pytest.raises(ValueError, match="name"):
                hvd.allreduce(torch.ones(1), name=7)
        hvd.barrier()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="x", process_set=some).item() if some.included() else 2.0

    assert ranks.run(body, size=3) == [2.0] * 3


def test_after_a_deadlock_ranks_that_begin_anew_with_names_are_in_step_again(ranks: RankPool) -> None:
    """Rank 1 leaves one operation out, once. Operations without names, matched by order, would stay out of step."""

    def body() -> object:
        refused: list[int] = []
        for step in range(4):
            try:
                if step != 1 or hvd.rank() == 0:
                    hvd.allreduce(torch.ones(2), name="a")
                hvd.allgather(torch.ones(2), name="b")
                hvd.broadcast(torch.ones(2), 0, name="c")
            except hvd.HorovodInternalError as error:
                assert "every rank waits for another" in str(error)  # noqa: PT017 - it need not come
                refused.append(step)
        return refused

    assert ranks.run(body) == [[1], [1]]


def test_the_messages_of_the_docs_about_mismatches_are_those_that_come(ranks: RankPool) -> None:
    shown = re.findall(r"^```output\n(Mismatched.*?)\n```$", read(), re.MULTILINE | re.DOTALL)

    def body() -> object:
        errors = []
        for name, size in (("loss", 3 + hvd.rank()), ("ab"[hvd.rank()], 3)):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                hvd.allreduce(torch.ones(size), name=name)
            errors.append(str(caught.value))
        return errors

    assert ranks.run(body) == [shown, shown]
