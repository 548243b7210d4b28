"""From one generation to the next: what is done, what is run again, and what cannot be; each verdict is injected.

(Long because each verdict needs its own story, and all of them the same beginning.)
"""

import struct
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import pytest
import torch

from rendezvous.core.reports import Done
from tests.worker_runtime.conversation import LIMIT_SECONDS
from tests.worker_runtime.generation import LARGE, Generation, make_executor, retry
from worker_runtime.collectives import AVERAGE, SUM, Allgather, Allreduce, Alltoall, Barrier, Broadcast, SparseAllreduce
from worker_runtime.collectives.agreements import AddSet, Commit
from worker_runtime.core.questions import GLOBAL_SET, Reduction
from worker_runtime.elastic_executor import ElasticExecutor
from worker_runtime.errors import HorovodInternalError, SetLostError, StepRevokedError
from worker_runtime.membership import CompletedOperation, Wish
from worker_runtime.operation import Members, Operation
from worker_runtime.reduction import GradientReducer
from worker_runtime.runner import Runner

THREE = (0, 1, 2)


@pytest.fixture
def executor(before: Generation, after: Generation) -> Iterator[ElasticExecutor]:
    """In the first of them; it is closed before they are."""
    del after
    made = make_executor(before)
    yield made
    made.close()


def find_all(executor: ElasticExecutor) -> Members:
    return executor.find_members(GLOBAL_SET, "x")


def pack(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def make_sum(executor: ElasticExecutor, name: str, *values: float) -> Allreduce:
    return Allreduce([torch.tensor(values)], SUM, find_all(executor), f"allreduce.{name}")


def interrupt(executor: ElasticExecutor, generation: Generation) -> None:
    """As after the loss of rank 1."""
    generation.lose()
    executor.suspend("rank 1 was lost")


def go_on(executor: ElasticExecutor, generation: Generation, *done: Done) -> None:
    """With the ranks 0 and 2."""
    executor.adopt(2, 0, 2, retry(0, 2, done=done))
    executor.resume(generation.group, generation.link)


def test_a_commit_that_not_all_have_asked_for_is_revoked(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(Commit(find_all(executor), 1))
    before.sequencer.read_names(1)
    interrupt(executor, before)
    report = executor.report()
    (pending,) = report.pending
    assert (pending.ranks, pending.number, pending.index, pending.obstacle) == (THREE, 1, None, "")
    assert (report.wish, report.completed, report.seen) == (Wish.CONTINUE, (), -1)
    go_on(executor, after)
    with pytest.raises(StepRevokedError):
        handle.wait()
    assert executor.committed == (0, THREE)
    assert executor.lineage == (0, 2)


def test_a_commit_that_all_have_asked_for_is_done_with_those_who_were_there(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(Commit(find_all(executor), 1))
    interrupt(executor, before)
    executor.report()
    go_on(executor, after, Done(THREE, 1))
    handle.wait()
    assert executor.committed == (1, THREE)
    assert (executor.rank, executor.size, executor.generation, executor.lineage) == (0, 2, 2, (0, 2))


def test_a_commit_that_was_seen_is_reported_and_the_next_one_counts_on(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    first = executor.submit(Commit(find_all(executor), 1))
    before.sequencer.read_names(1)
    before.release(0, index=7)
    first.wait()
    second = executor.submit(Commit(find_all(executor), 2))
    interrupt(executor, before)
    report = executor.report()
    assert report.completed == (CompletedOperation(THREE, "commit", 7, 1),)
    assert [each.number for each in report.pending] == [2]
    assert report.seen == 7
    go_on(executor, after)
    with pytest.raises(StepRevokedError):
        second.wait()
    assert executor.committed == (1, THREE)


def test_what_is_pending_runs_again_among_those_who_are_left(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0, 2.0))
    before.sequencer.read_names(1)
    interrupt(executor, before)
    assert [each.title for each in executor.report().pending] == ["allreduce 'x'"]
    go_on(executor, after)
    assert after.sequencer.read_names(1) == ["allreduce.x"]
    after.release(0, payload=pack(3.0, 4.0))
    assert handle.wait()[0].tolist() == [3.0, 4.0]


def test_what_was_answered_before_the_snapshot_is_done_and_its_result_stays(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0))
    before.sequencer.read_names(1)
    before.release(0, index=4, payload=pack(6.0))
    interrupt(executor, before)
    report = executor.report()
    assert (report.pending, report.completed) == ((), (CompletedOperation(THREE, "allreduce.x", 4, answer=pack(6.0)),))
    go_on(executor, after)
    assert handle.wait()[0].tolist() == [6.0]


def test_a_host_that_is_cut_off_is_trouble_to_whoever_waits_for_gloo(before: Generation) -> None:
    troubles = SimpleQueue[str]()
    executor = make_executor(before, troubles.put)
    handle = executor.submit(Allreduce([torch.ones(LARGE)], SUM, find_all(executor), "allreduce.x"))
    before.sequencer.read_names(1)
    before.release(0)
    before.played.silent = "10.0.0.2"

    def wait() -> None:
        with pytest.raises(HorovodInternalError):
            handle.wait()

    waiter = threading.Thread(target=wait)
    waiter.start()
    expected = "rank 0 does not reach 10.0.0.2 any more, which has acknowledged nothing for 6 s"
    assert troubles.get(timeout=LIMIT_SECONDS) == expected
    executor.close()
    waiter.join(LIMIT_SECONDS)
    assert not waiter.is_alive()


def test_gloo_that_fails_tells_trouble_and_the_operation_runs_again(before: Generation, after: Generation) -> None:
    troubles: list[str] = []
    executor = make_executor(before, troubles.append)
    tensor = torch.ones(LARGE)
    handle = executor.submit(Allreduce([tensor], SUM, find_all(executor), "allreduce.x"))
    before.sequencer.read_names(1)
    before.release(0)
    results: list[float] = []
    waiter = threading.Thread(target=lambda: results.append(handle.wait()[0][0].item()))
    handle.await_answer()
    before.played.shut_down()
    waiter.start()
    interrupt(executor, before)
    assert [each.index for each in executor.report().pending] == [0]
    go_on(executor, after)
    after.sequencer.read_names(1)
    after.release(0)
    handle.await_answer()
    after.played.works[-1].is_done = True
    waiter.join(LIMIT_SECONDS)
    assert results == [1.0]
    assert all(trouble.startswith(("allreduce 'x' failed on rank 0: ", "rank 1 was lost")) for trouble in troubles)
    assert before.played.is_shut
    executor.close()


def list_obstacles(members: Members) -> list[tuple[Operation[object], bool, str]]:
    """Operations, whether they have begun, and what keeps them from being run again."""
    large, small = torch.ones(LARGE), torch.ones(3)
    depends = "its result would depend on which ranks are left"
    table: list[tuple[Operation[object], bool, str]] = [
        (Allreduce([large], SUM, members, "allreduce.large", [large]), True, "its tensor was being changed in place"),
        (Allreduce([large], SUM, members, "allreduce.early", [large]), False, ""),
        (Allreduce([large], SUM, members, "allreduce.out", None), True, ""),
        (Allreduce([small], SUM, members, "allreduce.small", [small]), False, ""),
        (Allgather([large], members, "allgather.x"), False, depends),
        (Alltoall(torch.ones(3, LARGE), None, members, "alltoall.x"), False, depends),
        (SparseAllreduce(torch.eye(2).to_sparse(), Reduction.SUM, members, "allgather.sparse"), False, ""),
        (Barrier(members, "barrier.x"), False, ""),
        (AddSet([0, 1], members), False, "it was about ranks that are numbered anew"),
    ]
    return table


@pytest.mark.parametrize("number", range(9))
def test_what_cannot_be_run_again_says_why(executor: ElasticExecutor, before: Generation, number: int) -> None:
    operation, is_begun, obstacle = list_obstacles(find_all(executor))[number]
    handle = executor.submit(operation)
    before.sequencer.read_names(1)
    if is_begun:
        before.release(0)
        handle.await_answer()
    interrupt(executor, before)
    (pending,) = executor.report().pending
    assert pending.obstacle.startswith(obstacle)
    assert bool(pending.obstacle) == bool(obstacle)
    assert pending.index == (0 if is_begun else None)


def test_a_broadcast_names_the_rank_that_it_needs(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    members = find_all(executor)
    handle = executor.submit(Broadcast([torch.ones(2)], 2, members, "broadcast.x"))
    interrupt(executor, before)
    (pending,) = executor.report().pending
    assert (pending.root, pending.obstacle) == (2, "")
    go_on(executor, after)
    after.sequencer.read_names(1)
    after.release(0, payload=pack(5.0, 6.0))  # of the rank that is now 1
    assert handle.wait()[0].tolist() == [5.0, 6.0]


def test_a_set_that_has_lost_a_member_is_lost_and_another_is_made_known_again(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    del before
    executor.process_sets.add(1, (0, 1), 0)
    executor.process_sets.add(2, (0, 2), 1)
    handle = executor.submit(Barrier(executor.find_members(1, "x"), "barrier.x"))
    executor.suspend("rank 1 was lost")
    (pending,) = executor.report().pending
    assert pending.ranks == (0, 1)
    executor.adopt(2, 0, 2, retry(0, 2))
    resumer = threading.Thread(target=executor.resume, args=(after.group, after.link))
    resumer.start()
    assert after.sequencer.read_names(1) == ["add_process_set.2"]
    after.release_set(0, 2, (0, 1))
    resumer.join(LIMIT_SECONDS)
    with pytest.raises(SetLostError):
        handle.wait()
    with pytest.raises(SetLostError, match="process set 1"):
        executor.find_members(1, "x")
    assert executor.find_members(2, "x").ranks == (0, 1)


def test_a_barrier_that_others_have_passed_is_done(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(Barrier(find_all(executor), "barrier.x"))
    interrupt(executor, before)
    executor.report()
    go_on(executor, after, Done(THREE, 0, "barrier.x"))
    handle.wait()


def test_with_the_answer_that_others_have_got_a_sum_is_done(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    """It is that of all who were there, and nobody asks for it again."""
    mean = Allreduce([torch.tensor([1.0, 2.0])], AVERAGE, find_all(executor), "allreduce.x")
    handle = executor.submit(mean)
    interrupt(executor, before)
    executor.report()
    go_on(executor, after, Done(THREE, 0, "allreduce.x", pack(6.0, 12.0)))
    assert handle.wait()[0].tolist() == [2.0, 4.0]
    executor.submit(make_sum(executor, "y", 1.0))
    assert after.sequencer.read_names(1) == ["allreduce.y"]


def test_answers_are_told_if_they_are_short_and_of_late(executor: ElasticExecutor, before: Generation) -> None:
    for number in range(34):
        values = [1.0] * (300 if number == 20 else 1)
        handle = executor.submit(make_sum(executor, f"x{number}", *values))
        before.sequencer.read_names(1)
        before.release(number, payload=pack(*values))
        handle.wait()
    interrupt(executor, before)
    told = [bool(each.answer) for each in executor.report().completed]
    assert told == [False] * 2 + [True] * 18 + [False] + [True] * 13


def test_what_is_submitted_meanwhile_waits_and_is_asked_for_then(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    interrupt(executor, before)
    handle = executor.submit(make_sum(executor, "meanwhile", 1.0))
    assert executor.report().pending[0].name == "allreduce.meanwhile"
    go_on(executor, after)
    assert after.sequencer.read_names(1) == ["allreduce.meanwhile"]
    after.release(0, payload=pack(2.0))
    assert handle.wait()[0].tolist() == [2.0]


def test_an_operation_that_was_made_before_is_renewed_when_it_is_submitted_after(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    operation, of_step = make_sum(executor, "late", 1.0), make_sum(executor, "step", 1.0)
    of_step.is_of_step = True
    interrupt(executor, before)
    executor.report()
    go_on(executor, after)
    assert executor.submit(operation).operation.among.ranks == (0, 1)
    with pytest.raises(StepRevokedError):
        executor.submit(of_step)


def test_the_last_one_that_is_left_runs_alone_what_is_pending(executor: ElasticExecutor, before: Generation) -> None:
    handle = executor.submit(make_sum(executor, "x", 5.0))
    interrupt(executor, before)
    executor.report()
    executor.adopt(2, 0, 1, retry(0))
    executor.resume(None, None)
    assert handle.wait()[0].tolist() == [5.0]
    assert (executor.size, executor.lineage) == (1, (0,))


def test_the_last_one_that_is_left_commits_by_itself(executor: ElasticExecutor, before: Generation) -> None:
    """Between two optimizers' steps the others are lost: who took part in the second one is known."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    first, second = (GradientReducer(partial(list_named, parameter), lambda: executor) for parameter in parameters)
    sum(parameter.sum() for parameter in parameters).backward()  # type: ignore[union-attr]  # a sum of tensors is one
    stepper = threading.Thread(target=first.synchronize)
    stepper.start()
    for number in range(3):
        answer_one(before, number, is_committed=True)
    stepper.join(LIMIT_SECONDS)
    assert executor.committed == (1, THREE)
    stepper = threading.Thread(target=second.synchronize)
    stepper.start()
    answer_one(before, 3)
    interrupt(executor, before)
    executor.report()
    executor.adopt(2, 0, 1, retry(0))
    executor.resume(None, None)
    stepper.join(LIMIT_SECONDS)
    assert executor.committed == (2, (0,))
    assert [parameter.grad.tolist() for parameter in parameters] == [[7.0, 7.0], [1.0, 1.0]]  # type: ignore[union-attr]  # there is one
    second.synchronize()
    assert executor.committed == (3, (0,))


def list_named(parameter: torch.nn.Parameter) -> list[tuple[str, torch.Tensor]]:
    return [("p", parameter)]


def test_of_what_ran_alone_nobody_is_told(executor: ElasticExecutor, before: Generation) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0))
    interrupt(executor, before)
    executor.report()
    executor.adopt(2, 0, 1, retry(0))
    executor.resume(None, None)
    handle.wait()
    executor.suspend("others have come")
    assert executor.report().completed == ()


def test_a_second_loss_while_forming_keeps_what_is_pending(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0))
    interrupt(executor, before)
    executor.report()
    executor.adopt(2, 0, 2, retry(0, 2))
    executor.suspend("rank 1 was lost as well")
    report = executor.report()
    assert [(each.ranks, each.title) for each in report.pending] == [((0, 1), "allreduce 'x'")]
    del after
    executor.adopt(3, 0, 1, retry(0))
    executor.resume(None, None)
    assert handle.wait()[0].tolist() == [1.0]


def test_when_nothing_is_resumed_all_that_is_pending_and_all_that_comes_raises(
    executor: ElasticExecutor, before: Generation
) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0))
    interrupt(executor, before)
    executor.fail_all(lambda title: HorovodInternalError(f"{title}: over"))
    with pytest.raises(HorovodInternalError, match="allreduce 'x': over"):
        handle.wait()
    with pytest.raises(HorovodInternalError, match="allreduce 'y': over"):
        executor.submit(make_sum(executor, "y", 1.0))


def test_a_program_that_closes_while_the_recovery_suspends_comes_after_it(
    executor: ElasticExecutor, before: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end the connection to the sequencer, whose descriptors are other files' as soon as they are free."""
    is_suspending, may_go_on = threading.Event(), threading.Event()
    find_all(executor)

    def interrupt_slowly(_: object) -> bool:
        is_suspending.set()
        return may_go_on.wait(LIMIT_SECONDS)

    monkeypatch.setattr(Runner, "interrupt", interrupt_slowly)
    before.lose()
    suspending = threading.Thread(target=executor.suspend, args=("rank 1 was lost",))
    suspending.start()
    assert is_suspending.wait(LIMIT_SECONDS)
    closing = threading.Thread(target=executor.close)
    closing.start()
    closing.join(0.2)  # it would have ended, if it did not wait
    assert closing.is_alive()
    may_go_on.set()
    for thread in (suspending, closing):
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    assert before.is_closed


def test_a_suspended_one_can_report_before_what_it_ran_has_ended(executor: ElasticExecutor, before: Generation) -> None:
    """What has not ended may still write: to disconnect is to wait for it."""
    handle = executor.submit(Allreduce([torch.zeros(LARGE)], SUM, find_all(executor), "allreduce.large"))
    before.release(0, ranks=THREE)
    handle.await_answer()
    before.played.lingers = True
    interrupt(executor, before)
    assert [pending.name for pending in executor.report().pending] == ["allreduce.large"]
    disconnecting = threading.Thread(target=executor.disconnect)
    disconnecting.start()
    disconnecting.join(0.1)
    assert disconnecting.is_alive()
    assert not before.played.is_shut
    before.played.works[0].is_bad = True
    disconnecting.join(LIMIT_SECONDS)
    assert before.is_closed
    assert not handle.is_done()
    executor.disconnect()
    assert before.is_closed


def test_closing_ends_who_waits_for_a_generation(executor: ElasticExecutor, before: Generation) -> None:
    handle = executor.submit(make_sum(executor, "x", 1.0))
    interrupt(executor, before)
    caught: list[HorovodInternalError] = []

    def wait() -> None:
        try:
            handle.wait()
        except HorovodInternalError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    executor.close()
    waiter.join(LIMIT_SECONDS)
    assert "shut down" in str(caught[0])


def test_a_generation_that_is_formed_after_closing_is_closed(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    interrupt(executor, before)
    executor.report()
    executor.adopt(2, 0, 2, retry(0, 2))
    executor.close()
    executor.resume(after.group, after.link)
    assert after.played.is_shut
    assert after.link.fileno() == -1


def test_a_step_of_which_some_were_done_is_made_anew_from_the_gradients_that_were_kept(
    executor: ElasticExecutor, before: Generation, after: Generation
) -> None:
    """This rank has the average of three already, and puts its own gradient back: the others do not have it."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    reducer = GradientReducer(lambda: [("p", parameter)], lambda: executor)
    (parameter * torch.tensor([1.0, 2.0])).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stepper = threading.Thread(target=reducer.synchronize)
    stepper.start()
    names = ["allreduce.optimizer.1.plan", "allreduce.optimizer.1.bucket.0", "commit"]
    asked = [answer_one(before, number) for number in range(3)]
    assert [name for name, _ in asked] == names
    assert struct.unpack("2f", asked[1][1]) == pytest.approx((1 / 3, 2 / 3))
    interrupt(executor, before)
    assert [each.number for each in executor.report().pending] == [1]
    go_on(executor, after)
    asked = [answer_one(after, number, pack(10.0, 20.0), is_committed=True) for number in range(3)]
    assert [name for name, _ in asked] == names
    assert asked[1][1] == pack(0.5, 1.0)
    stepper.join(LIMIT_SECONDS)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [10.0, 20.0]
    assert executor.committed == (1, (0, 2))


def answer_one(
    generation: Generation, number: int, payload: bytes = pack(7.0, 7.0), *, is_committed: bool = False
) -> tuple[str, bytes]:
    """Play the sequencer for a question of a step: the survey, the bucket, the commit round; its name and payload."""
    name, asked = generation.read_question()
    if "bucket" in name:
        generation.release(number, payload=payload)
    elif name.endswith(".plan"):
        generation.release(number, payload=struct.pack("3q", 0, 1, 0))  # no calm step, the only place, nothing sparse
    elif is_committed:
        generation.release(number)
    return name, asked
