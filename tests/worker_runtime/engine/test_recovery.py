"""From one generation to the next: what is done, what is run again, and what cannot be; each decision is injected."""

import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rendezvous.core.reports import Done, Report
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.conversation import Errand
from tests.worker_runtime.generation import LARGE, Pending, PlayedGeneration, make_succession, retry
from worker_runtime.api.process_set import ProcessSet, remove_process_set
from worker_runtime.collectives.agreements import AddSet, Barrier, CommitRound, Join
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.alltoall import Alltoall
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import AVERAGE, SUM
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.operation import Handle, Members, Operation
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Reduction, Release
from worker_runtime.coordination.wire import Frame, encode_neutral
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.losses import STOPPING, Retry
from worker_runtime.errors import HorovodInternalError, SetLostError, StepRevokedError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.reduction import GradientReducer
from worker_runtime.rendezvous import CompletedOperation, JoinReason, PendingOperation

THREE_RANKS = (0, 1, 2)


class Scene:
    """An engine of rank 0 of three, in the generation `before`; after the loss of rank 1 there is `after`."""

    def __init__(self, before: PlayedGeneration, after: PlayedGeneration) -> None:
        self.before, self.after = before, after
        self.troubles = SimpleQueue[str]()
        self.succession = make_succession(before, self.troubles.put)
        self.engine = self.succession.engine

    @property
    def all_ranks(self) -> Members:
        """Of the present generation."""
        return self.engine.find_members(GLOBAL_SET, "x")

    def sum(self, name: str, *values: float) -> Allreduce:
        """An operation of all."""
        return Allreduce([torch.tensor(values)], SUM, self.all_ranks, f"allreduce.{name}")

    def ask(self, operation: Operation[object]) -> Handle[object]:
        """Submit an operation, and read its request."""
        handle = self.engine.submit(operation)
        self.before.sequencer.read_names(1)
        return handle

    def interrupt(self) -> Report:
        """As after the loss of rank 1."""
        self.before.lose()
        self.succession.suspend("rank 1 was lost")
        return self.succession.report()

    def resume(self, *done: Done) -> None:
        """With the ranks 0 and 2."""
        self.succession.adopt(2, 0, 2, retry(0, 2, done=done))
        self.succession.resume(self.after.group, self.after.link)

    def resume_alone(self, generation: int = 2) -> None:
        """All others are lost."""
        self.succession.adopt(generation, 0, 1, retry(0))
        self.succession.resume(None, None)


@pytest.fixture
def scene(before: PlayedGeneration, after: PlayedGeneration) -> Iterator[Scene]:
    """In the first generation; the engine is closed before they are."""
    made = Scene(before, after)
    yield made
    made.engine.close()


def pack(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def only(pending: tuple[PendingOperation, ...]) -> PendingOperation:
    (operation,) = pending
    return operation


def test_a_commit_that_not_all_have_requested_is_revoked(scene: Scene) -> None:
    handle = scene.ask(CommitRound(scene.all_ranks, 1))
    report = scene.interrupt()
    pending = only(report.pending)
    assert (pending.ranks, pending.number, pending.index, pending.obstacle) == (THREE_RANKS, 1, None, "")
    assert (report.reason, report.completed, report.seen) == (JoinReason.CONTINUE, (), -1)
    scene.resume()
    with pytest.raises(StepRevokedError):
        scene.engine.wait(handle)
    assert (scene.engine.steps.completed, scene.engine.steps.original_ranks) == ((0, THREE_RANKS), (0, 2))


def test_a_commit_that_all_have_requested_is_done_with_its_ranks(scene: Scene) -> None:
    engine = scene.engine
    handle = scene.ask(CommitRound(scene.all_ranks, 1))
    scene.interrupt()
    scene.resume(Done(THREE_RANKS, 1))
    scene.engine.wait(handle)
    assert engine.steps.completed == (1, THREE_RANKS)
    assert (engine.rank, engine.size, engine.generation, engine.steps.original_ranks) == (0, 2, 2, (0, 2))


def test_a_stop_notice_counts_from_the_first_step_released_after_the_notice(scene: Scene) -> None:
    engine = scene.engine
    engine.current.stops_from = 8
    for number, index in ((1, 7), (2, 8)):
        handle = scene.ask(CommitRound(scene.all_ranks, number))
        scene.before.release(number - 1, index=index)
        scene.engine.wait(handle)
        assert (engine.steps.has_stepped, engine.steps.is_stopping) == (True, number == 2)
    assert [each.response for each in scene.interrupt().completed] == [b"", STOPPING]


@pytest.mark.parametrize("response", [b"", STOPPING])
def test_a_step_that_others_have_committed_has_their_stop_notice(scene: Scene, response: bytes) -> None:
    handle = scene.ask(CommitRound(scene.all_ranks, 1))
    scene.interrupt()
    scene.resume(Done(THREE_RANKS, 1, response=response))
    scene.engine.wait(handle)
    assert (scene.engine.steps.has_stepped, scene.engine.steps.is_stopping) == (True, response == STOPPING)


def test_a_commit_that_was_seen_is_reported_and_the_next_one_counts_on(scene: Scene) -> None:
    first = scene.ask(CommitRound(scene.all_ranks, 1))
    scene.before.release(0, index=7)
    scene.engine.wait(first)
    second = scene.engine.submit(CommitRound(scene.all_ranks, 2))
    report = scene.interrupt()
    assert report.completed == (CompletedOperation(THREE_RANKS, "commit", 7, 1),)
    assert (only(report.pending).number, report.seen) == (2, 7)
    scene.resume()
    with pytest.raises(StepRevokedError):
        scene.engine.wait(second)
    assert scene.engine.steps.completed == (1, THREE_RANKS)


def test_a_joined_rank_reports_the_commits_of_the_others(scene: Scene) -> None:
    scene.ask(Join(scene.all_ranks))
    for index in range(2):
        release = Release(index, CommitRound(scene.all_ranks, 1 + index).request, THREE_RANKS, joined=(0,))
        scene.before.sequencer.send(Frame.NEUTRAL, encode_neutral(release))
    scene.engine.progress()
    assert [(each.number, each.index) for each in scene.interrupt().completed] == [(1, 0), (2, 1)]


def test_pending_operations_run_again_among_the_remaining_ranks(scene: Scene) -> None:
    handles = [scene.ask(scene.sum("x", 1.0, 2.0))]
    assert only(scene.interrupt().pending).title == "allreduce 'x'"
    handles.append(scene.engine.submit(scene.sum("meanwhile", 1.0)))
    scene.resume()
    assert scene.after.sequencer.read_names(2) == ["allreduce.x", "allreduce.meanwhile"]
    scene.after.release(0, payload=pack(3.0, 4.0))
    scene.after.release(1, payload=pack(2.0))
    assert [scene.engine.wait(handle)[0].tolist() for handle in handles] == [[3.0, 4.0], [2.0]]


def test_an_operation_answered_before_the_snapshot_is_done_and_its_result_stays(scene: Scene) -> None:
    handle = scene.ask(scene.sum("x", 1.0))
    scene.before.release(0, index=4, payload=pack(6.0))
    report = scene.interrupt()
    assert report.pending == ()
    assert [(each.ranks, each.name, each.index) for each in report.completed] == [(THREE_RANKS, "allreduce.x", 4)]
    scene.resume()
    assert scene.engine.wait(handle)[0].tolist() == [6.0]


def test_a_host_that_is_cut_off_is_trouble_to_a_thread_that_waits_for_gloo(scene: Scene) -> None:
    handle = scene.ask(scene.sum("x", *[1.0] * LARGE))
    scene.before.release(0)
    scene.before.played.silent = "10.0.0.2"
    waiting = Errand(scene.engine.wait, handle)
    expected = "rank 0 cannot reach 10.0.0.2, which has acknowledged nothing for 6.83 s"
    assert scene.troubles.get(timeout=LIMIT_SECONDS) == expected
    scene.engine.close()
    with pytest.raises(HorovodInternalError):
        waiting.finish()


def test_a_failure_of_gloo_reports_trouble_and_the_operation_runs_again(scene: Scene) -> None:
    handle = scene.ask(scene.sum("x", *[1.0] * LARGE))
    scene.before.release(0)
    scene.engine.await_response(handle)
    scene.before.played.shut_down()
    waiting = Errand(scene.engine.wait, handle)
    assert scene.troubles.get(timeout=LIMIT_SECONDS).startswith("allreduce 'x' failed on rank 0: ")
    assert only(scene.interrupt().pending).index == 0
    scene.resume()
    scene.after.sequencer.read_names(1)
    scene.after.release(0)
    scene.engine.await_response(handle)
    scene.after.played.works[-1].is_done = True
    assert waiting.finish()[0][0].item() == 1.0
    assert scene.before.played.is_shut


@pytest.mark.parametrize("ends", [True, False])
def test_a_wait_that_sees_its_work_fail_only_after_the_recovery_blames_no_generation(
    scene: Scene, *, ends: bool
) -> None:
    has_begun = threading.Event()  # the recovery, in the first wait

    class Late(Pending):
        """A work that fails, or never ends, while the recovery takes place."""

        def wait(self, timeout: timedelta = timedelta()) -> bool:
            """See `Pending`."""
            if not has_begun.is_set():
                has_begun.set()
                scene.interrupt()
                scene.resume()
                scene.after.release(0)
                scene.after.played.is_quick = True
                self.is_bad = ends
            return super().wait(timeout)

    handle = scene.ask(scene.sum("x", *[1.0] * LARGE))
    scene.before.release(0)
    scene.engine.await_response(handle)
    handle.works = [Late()]
    assert scene.engine.wait(handle)[0][0].item() == 1.0
    assert {scene.troubles.get() for _ in range(scene.troubles.qsize())} == {"rank 1 was lost"}


def list_obstacles(members: Members) -> list[tuple[Operation[object], bool, str]]:
    """Operations, whether they have begun, and what keeps them from being run again."""
    large, small = torch.ones(LARGE), torch.ones(3)
    depends = "its result would depend on which ranks survive"
    return [
        (Allreduce([large], SUM, members, "allreduce.large", [large]), True, "its tensor was being changed in place"),
        (Allreduce([large], SUM, members, "allreduce.early", [large]), False, ""),
        (Allreduce([large], SUM, members, "allreduce.out", None), True, ""),
        (Allreduce([small], SUM, members, "allreduce.small", [small]), False, ""),
        (Allgather([large], members, "allgather.x"), False, depends),
        (Alltoall(torch.ones(3, LARGE), None, members, "alltoall.x"), False, depends),
        (SparseAllreduce(torch.eye(2).to_sparse(), Reduction.SUM, members, "allgather.sparse"), False, ""),
        (Barrier(members, "barrier.x"), False, ""),
        (AddSet([0, 1], members), False, "it names ranks that have changed"),
    ]


@pytest.mark.parametrize("number", range(9))
def test_an_operation_that_cannot_run_again_says_why(scene: Scene, number: int) -> None:
    operation, is_begun, obstacle = list_obstacles(scene.all_ranks)[number]
    handle = scene.ask(operation)
    if is_begun:
        scene.before.release(0)
        scene.engine.await_response(handle)
    pending = only(scene.interrupt().pending)
    assert pending.obstacle.startswith(obstacle)
    assert bool(pending.obstacle) == bool(obstacle)
    assert pending.index == (0 if is_begun else None)


def test_a_broadcast_names_the_rank_that_it_needs(scene: Scene) -> None:
    handle = scene.ask(Broadcast([torch.ones(2)], 2, scene.all_ranks, "broadcast.x"))
    pending = only(scene.interrupt().pending)
    assert (pending.root, pending.obstacle) == (2, "")
    scene.resume()
    scene.after.sequencer.read_names(1)
    scene.after.release(0, payload=pack(5.0, 6.0))  # of the rank that is now 1
    assert scene.engine.wait(handle)[0].tolist() == [5.0, 6.0]


def test_a_set_that_has_lost_a_member_is_lost_and_another_is_made_known_again(scene: Scene) -> None:
    engine = scene.engine
    engine.process_sets.add(1, (0, 1), 0)
    engine.process_sets.add(2, (0, 2), 1)
    handle = engine.submit(Barrier(engine.find_members(1, "x"), "barrier.x"))
    assert only(scene.interrupt().pending).ranks == (0, 1)
    resuming = Errand(scene.resume)
    for number, members in enumerate([(0,), (0, 1)], start=1):  # the number of the lost set is not used again
        assert scene.after.sequencer.read_names(1) == [f"add_process_set.{number}"]
        scene.after.release_set(number - 1, number, members)
    resuming.finish()
    with pytest.raises(SetLostError):
        scene.engine.wait(handle)
    with pytest.raises(SetLostError, match="process set 1 has lost rank 1"):
        engine.find_members(1, "x")
    assert engine.find_members(2, "x").ranks == (0, 1)


def register(engine: Engine, number: int, *ranks: int) -> ProcessSet:
    """As `add_process_set`."""
    made = ProcessSet(ranks)
    engine.process_sets.add(number, ranks, number)
    made.register(engine, number)
    return made


def describe_set(made: ProcessSet) -> tuple[object, ...]:
    return made.process_set_id, made.ranks, made.size(), made.included()


def test_the_program_s_sets_follow(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scene.engine
    monkeypatch.setattr(RUNTIME, "world", SimpleNamespace(engine=engine))
    kept, shrunk, foreign, gone = (
        register(engine, number, *ranks) for number, ranks in enumerate([(0, 2), (0, 1), (2,), (1,)], start=1)
    )
    scene.interrupt()
    scene.succession.adopt(2, 0, 2, retry(0, 2))
    assert [describe_set(each) for each in (kept, shrunk, foreign, gone)] == [
        (1, [0, 1], 2, True),
        (2, [0], 1, True),
        (3, [1], 1, False),
        (4, [], 0, False),
    ]
    assert [each.rank() for each in (kept, shrunk)] == [0, 0]
    with pytest.raises(SetLostError, match="process set 2 has lost rank 1"):
        engine.find_members(shrunk.find_number("x"), "x")
    assert remove_process_set(gone)
    again = register(engine, 4, 0, 1)
    assert [engine.process_sets.is_current(number) for number in range(1, 5)] == [True, False, True, True]
    assert (describe_set(gone), describe_set(again)) == ((None, [1], None, False), (4, [0, 1], 2, True))
    assert pickle.loads(pickle.dumps(kept)).ranks == [0, 1]  # noqa: S301 - what was dumped here
    scene.succession.resume(None, None)


def test_an_operation_that_outlives_its_set_fails_and_others_run_again(scene: Scene) -> None:
    engine = scene.engine
    register(engine, 1, 0, 2)
    outliving = scene.ask(Allreduce([torch.ones(LARGE)], SUM, engine.find_members(1, "x"), "allreduce.x"))
    scene.before.release(0)
    engine.await_response(outliving)
    engine.process_sets.remove(1)  # its release has come while the operation runs
    other = scene.ask(scene.sum("y", 1.0))
    found = {each.name: (each.ranks, each.index) for each in scene.interrupt().pending}
    assert found == {"allreduce.x": ((0, 2), 0), "allreduce.y": (THREE_RANKS, None)}
    scene.resume()
    with pytest.raises(HorovodInternalError, match="allreduce 'x' failed on rank 0: its process set was removed"):
        engine.wait(outliving)
    scene.after.release(0, payload=pack(2.0))
    assert engine.wait(other)[0].tolist() == [2.0]


def test_a_rank_that_declares_its_sets_again_does_not_count_as_one_that_asks(scene: Scene) -> None:
    """The thread that recovers lives on: a deadlock is reported only where no thread is left that may ask."""
    register(scene.engine, 1, 0, 2)
    scene.interrupt()
    resuming = Errand(scene.resume)
    assert scene.after.sequencer.read_names(1) == ["add_process_set.1"]
    scene.after.release_set(0, 1, (0, 1))
    resuming.finish()
    assert resuming.ident not in scene.engine.askers


def test_a_barrier_that_others_have_passed_is_done(scene: Scene) -> None:
    handle = scene.engine.submit(Barrier(scene.all_ranks, "barrier.x"))
    scene.interrupt()
    scene.resume(Done(THREE_RANKS, 0, "barrier.x"))
    scene.engine.wait(handle)


def make_average(members: Members) -> Operation[list[Any]]:
    return Allreduce([torch.tensor([1.0, 2.0])], AVERAGE, members, "x")


def make_gathering(members: Members) -> Operation[list[Any]]:
    return Allgather([torch.tensor([1.0]), torch.tensor([[7]])], members, "x")


@pytest.mark.parametrize(
    ("make", "sizes", "payload", "result"),
    [
        (make_average, (), pack(6.0, 12.0), [[2.0, 4.0]]),
        (
            make_gathering,
            ((1, 1), (2, 0), (0, 1)),
            pack(1.0) + struct.pack("q", 7) + pack(2.0, 3.0) + struct.pack("q", 8),
            [([1.0, 2.0, 3.0], (1, 2, 0)), ([[7], [8]], (1, 0, 1))],
        ),
    ],
)
def test_with_the_response_that_others_have_got_an_operation_is_done(
    scene: Scene,
    make: Callable[[Members], Operation[list[Any]]],
    sizes: tuple[tuple[int, ...], ...],
    payload: bytes,
    result: object,
) -> None:
    """The result is that of all ranks before the loss, and no rank requests the operation again."""
    operation = make(scene.all_ranks)
    other = Retry(lambda *_: None)  # of a rank that has done the operation
    other.remember(
        operation, Release(4, operation.request, THREE_RANKS, sizes=sizes), memoryview(payload), is_stopping=False
    )
    (done,) = other.list_completed()
    handle = scene.engine.submit(operation)
    scene.interrupt()
    scene.resume(Done(THREE_RANKS, 0, "x", done.response))
    found = scene.engine.wait(handle)
    assert [each.tolist() if make is make_average else (each[0].tolist(), each[1]) for each in found] == result
    scene.engine.submit(scene.sum("y", 1.0))
    assert scene.after.sequencer.read_names(1) == ["allreduce.y"]


def test_only_short_and_recent_responses_are_reported(scene: Scene) -> None:
    for number in range(34):
        values = [1.0] * (300 if number == 20 else 1)
        handle = scene.ask(scene.sum(f"x{number}", *values))
        scene.before.release(number, payload=pack(*values))
        scene.engine.wait(handle)
    reported = [bool(each.response) for each in scene.interrupt().completed]
    assert reported == [False] * 2 + [True] * 18 + [False] + [True] * 13


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_operation_made_in_one_generation_is_renewed_when_it_is_submitted_in_the_next(
    scene: Scene, *, is_resumed: bool
) -> None:
    """Also while the next generation is connected."""
    engine, after = scene.engine, scene.after
    average = Allreduce([torch.tensor([3.0])], AVERAGE, scene.all_ranks, "allreduce.average")
    scene.interrupt()
    scene.succession.adopt(2, 0, 2, retry(0, 2))
    if is_resumed:
        scene.succession.resume(after.group, after.link)
    handle = engine.submit(average)
    if not is_resumed:
        scene.succession.resume(after.group, after.link)
    after.release(0, payload=pack(6.0))
    assert (engine.wait(handle)[0].tolist(), handle.operation.among.ranks) == ([3.0], (0, 1))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_step_is_revoked_also_where_no_rank_was_lost(scene: Scene, *, is_resumed: bool) -> None:
    """As when the sequencer has ended: the others make the step anew, and will not ask for this part of the old one."""
    of_step, other = scene.sum("step", 1.0), Allgather([torch.ones(2)], scene.all_ranks, "allgather.other")
    of_step.is_of_step = True
    scene.interrupt()
    scene.succession.adopt(2, 0, 3, retry(*THREE_RANKS))
    if is_resumed:
        scene.succession.resume(scene.after.group, scene.after.link)
    for operation in (of_step, CommitRound(of_step.among, 1)):
        with pytest.raises(StepRevokedError):
            scene.engine.submit(operation)
    assert scene.engine.submit(other).operation is other


@pytest.mark.parametrize("is_sparse", [False, True])
def test_an_operation_is_renewed_in_the_stream_that_follows_its_caller(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, is_sparse: bool
) -> None:
    """The recovery's thread renews it, and the inputs may still be written in the caller's stream."""
    notes: list[str] = []

    @contextmanager
    def stream() -> Iterator[None]:
        notes.append("entered")
        yield
        notes.append("left")

    kind = Allgather if is_sparse else Allreduce
    check = kind.__init__

    def note_creation(self: Any, *arguments: Any, **more: Any) -> None:
        notes.append("created")
        check(self, *arguments, **more)

    operation: Operation[Any] = scene.sum("x", 1.0)
    parts = operation
    if is_sparse:
        operation = SparseAllreduce(torch.eye(2).to_sparse(), Reduction.SUM, scene.all_ranks, "sparse_allreduce.x")
        parts = operation._elements
    scene.ask(operation)
    parts._side_stream = stream()
    monkeypatch.setattr(kind, "__init__", note_creation)
    scene.interrupt()
    scene.resume()
    assert notes == ["entered", "created", "left"]


def test_a_renewed_operation_keeps_its_note(scene: Scene) -> None:
    """By which the ranks compare what they mean: those that ask only now have it."""
    operation = scene.sum("x", 1.0)
    operation.request = operation.request.add_note("3 values")
    handle = scene.ask(operation)
    scene.interrupt()
    scene.resume()
    assert handle.operation.request.signature.note == "3 values"


def test_an_operation_whose_name_is_used_again_counts_as_done(scene: Scene) -> None:
    """No thread has waited for the first one; else the others' first would be taken for the second one here."""
    for number in range(2):
        handle = scene.ask(scene.sum("x", *[1.0] * LARGE))
        if not number:
            scene.before.release(0)
            scene.engine.await_response(handle)
            scene.before.played.works[0].is_done = True
    report = scene.interrupt()
    assert (only(report.pending).index, report.completed) == (
        None,
        (CompletedOperation(THREE_RANKS, "allreduce.x", 0),),
    )


def test_the_last_rank_runs_alone_what_is_pending_and_reports_nothing_of_it(scene: Scene) -> None:
    handle = scene.engine.submit(scene.sum("x", 5.0))
    scene.interrupt()
    scene.resume_alone()
    assert scene.engine.wait(handle)[0].tolist() == [5.0]
    assert (scene.engine.size, scene.engine.steps.original_ranks) == (1, (0,))
    scene.succession.suspend("others have come")
    assert scene.succession.report().completed == ()


def test_the_last_rank_commits_by_itself(scene: Scene) -> None:
    """Between two optimizers' steps the others are lost: who took part in the second one is known."""
    engine, before = scene.engine, scene.before
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    first, second = (make_reducer(scene, parameter) for parameter in parameters)
    sum(parameter.sum() for parameter in parameters).backward()
    stepping = Errand(first.synchronize)
    for number in range(3):
        answer_one(before, number, is_committed=True)
    stepping.finish()
    assert engine.steps.completed == (1, THREE_RANKS)
    stepping = Errand(second.synchronize)
    answer_one(before, 3)
    scene.interrupt()
    scene.resume_alone()
    stepping.finish()
    assert engine.steps.completed == (2, (0,))
    assert [parameter.grad.tolist() for parameter in parameters] == [[7.0, 7.0], [1.0, 1.0]]
    second.synchronize()
    assert engine.steps.completed == (3, (0,))


def make_reducer(scene: Scene, parameter: torch.nn.Parameter) -> GradientReducer:
    return GradientReducer(lambda: [("p", parameter)], lambda: scene.engine)


def test_without_a_resumption_pending_and_later_operations_raise(scene: Scene) -> None:
    handle = scene.engine.submit(scene.sum("x", 1.0))
    scene.interrupt()
    scene.engine.fail_all(lambda title: HorovodInternalError(f"{title}: over"))
    with pytest.raises(HorovodInternalError, match="allreduce 'x': over"):
        scene.engine.wait(handle)
    with pytest.raises(HorovodInternalError, match="allreduce 'y': over"):
        scene.engine.submit(scene.sum("y", 1.0))


def test_a_program_that_closes_while_the_recovery_suspends_comes_after_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads end the connection to the sequencer, whose descriptors may soon be those of other files."""
    is_suspending, may_continue = threading.Event(), threading.Event()

    def interrupt_slowly(_: object) -> bool:
        is_suspending.set()
        return may_continue.wait(LIMIT_SECONDS)

    monkeypatch.setattr(Generation, "interrupt", interrupt_slowly)
    scene.before.lose()
    suspending = Errand(scene.succession.suspend, "rank 1 was lost")
    assert is_suspending.wait(LIMIT_SECONDS)
    closing = Errand(scene.engine.close)
    closing.join(0.2)  # a close that does not wait ends within this
    assert closing.is_alive()
    may_continue.set()
    suspending.finish()
    closing.finish()
    assert scene.before.is_closed


def test_a_suspended_engine_can_report_before_its_operations_have_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not ended may still write: to disconnect is to wait for it."""
    monkeypatch.setattr("worker_runtime.engine.generation.INTERRUPT_LIMIT_SECONDS", LIMIT_SECONDS)
    handle = scene.ask(scene.sum("large", *[0.0] * LARGE))
    scene.before.release(0, ranks=THREE_RANKS)
    scene.engine.await_response(handle)
    scene.before.played.lingers = True
    assert only(scene.interrupt().pending).name == "allreduce.large"
    disconnecting = Errand(scene.succession.disconnect)
    disconnecting.join(0.1)
    assert disconnecting.is_alive()
    assert not scene.before.played.is_shut
    scene.before.played.works[0].is_bad = True
    disconnecting.finish()
    assert scene.before.is_closed
    assert not handle.is_done()
    scene.succession.disconnect()
    assert scene.before.is_closed


def test_closing_ends_a_wait_for_a_generation(scene: Scene) -> None:
    handle = scene.engine.submit(scene.sum("x", 1.0))
    scene.interrupt()
    waiting = Errand(scene.engine.wait, handle)
    scene.engine.close()
    with pytest.raises(HorovodInternalError, match="shut down"):
        waiting.finish()


def test_a_generation_that_is_formed_after_closing_is_closed(scene: Scene) -> None:
    scene.interrupt()
    scene.succession.adopt(2, 0, 2, retry(0, 2))
    scene.engine.close()
    scene.succession.resume(scene.after.group, scene.after.link)
    assert scene.after.is_closed


def test_a_step_of_which_some_were_done_runs_with_step_from_the_gradients_that_were_kept(scene: Scene) -> None:
    """This rank has the average of three already, and puts its own gradient back: the others do not have it."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    reducer = make_reducer(scene, parameter)
    (parameter * torch.tensor([1.0, 2.0])).sum().backward()
    stepping = Errand(reducer.synchronize)
    names = ["allreduce.optimizer.1.plan", "allreduce.optimizer.1.bucket.0", "commit"]
    asked = [answer_one(scene.before, number) for number in range(3)]
    assert [name for name, _ in asked] == names
    assert struct.unpack("2f", asked[1][1]) == pytest.approx((1 / 3, 2 / 3))
    assert only(scene.interrupt().pending).number == 1
    scene.resume()
    asked = [answer_one(scene.after, number, pack(10.0, 20.0), is_committed=True) for number in range(3)]
    assert [name for name, _ in asked] == names
    assert asked[1][1] == pack(0.5, 1.0)
    stepping.finish()
    assert parameter.grad.tolist() == [10.0, 20.0]
    assert scene.engine.steps.completed == (1, (0, 2))


def answer_one(
    generation: PlayedGeneration, number: int, payload: bytes = pack(7.0, 7.0), *, is_committed: bool = False
) -> tuple[str, bytes]:
    """Play the sequencer for a request of a step (negotiation, bucket, commit round); its name and payload."""
    name, asked = generation.read_request()
    if "bucket" in name:
        generation.release(number, payload=payload)
    elif name.endswith(".plan"):
        generation.release(number, payload=struct.pack("3q", 0, 1, 0))  # a new one, the only place, nothing sparse
    elif is_committed:
        generation.release(number)
    return name, asked
