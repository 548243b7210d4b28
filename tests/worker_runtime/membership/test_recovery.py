"""Between a loss and the next generation: the rendezvous is played by the test, and so are the other members."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from rendezvous.core.model import Slot, Worker
from tests.waiting import LIMIT_SECONDS, wait_until
from tests.worker_runtime.generation import PlayedGeneration, connect
from tests.worker_runtime.registrar import Call, Registrar, publish
from worker_runtime.collectives.agreements import CommitRound
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import SUM
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.coordination.wire import Frame, encode_number
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.succession import Succession
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt
from worker_runtime.groups.backends.choice import GLOO_ALONE
from worker_runtime.membership import formation as formation_module
from worker_runtime.membership import recovery as recovery_module
from worker_runtime.membership.recovery import Entered, Recovery
from worker_runtime.rendezvous import (
    Action,
    Assignment,
    Bootstrap,
    CompletedOperation,
    Depart,
    Interrupt,
    JoinReason,
    Membership,
    OfferResize,
    RendezvousError,
    Report,
)

LOST = "rank 1 was lost"
ALONE = Assignment(0, 1, 0, 1, 0, 1)


def make_offer(generation: int, number: int = 1) -> OfferResize:
    return OfferResize(generation, number, adds=True, removes=False)


class Stage:
    """A worker as rank 0 of the generation 5, once it has begun.

    generations: those of more than one member, by number; each is connected when its gate is open.
    heard: of new numbers and of offers, in order.
    may_hear: cleared while the worker is held up in hearing of them: what must wait for it, and does not, shows.
    """

    def __init__(self, pool: ThreadPoolExecutor, *, late: bool = False) -> None:
        self.registrar = Registrar()
        self.generations = {5: PlayedGeneration(5, size=3), 6: PlayedGeneration(6), 7: PlayedGeneration(7)}
        self.heard = SimpleQueue[Assignment | OfferResize]()
        self.may_hear = threading.Event()
        self.may_hear.set()
        self.pool = pool
        self._engines: list[Engine] = []
        bootstrap = Bootstrap("job", Path("unused"), Worker(Slot("localhost", 0), 1), "127.0.0.1", 1.0, 5.0, late)
        self.recovery = Recovery(bootstrap, lambda _: self.registrar, GLOO_ALONE, 0, self._hear, self._hear)

    def form(self, membership: Membership, *_: object, **__: object) -> Group | None:
        """In gloo's place."""
        return self.generations[membership.generation].form(membership)

    def enter(self, reason: JoinReason, error: str = "") -> "Future[Entered]":
        """In a thread of its own, as the program does."""
        return self.pool.submit(self.recovery.enter, reason, error)

    def begin(self, size: int = 1) -> Engine:
        """The worker's engine, in the first generation."""
        self.generations[5].gate.set()
        entering = self.enter(JoinReason.BEGIN)
        call = self.registrar.read()
        assert (call.after, call.report.reason) == (0, JoinReason.BEGIN)
        call.answer(publish(5, Action.BEGIN, size=size))
        self._engines.append(entering.result(LIMIT_SECONDS)[1])
        return self._engines[-1]

    def interrupt(self, generation: int = 5, reason: str = LOST) -> Call:
        """Report that a generation cannot continue; what the worker requests then."""
        self.registrar.notify(Interrupt(generation, reason))
        return self.registrar.read()

    def read_heard(self) -> Assignment | OfferResize:
        """What it receives next."""
        return self.heard.get(timeout=LIMIT_SECONDS)

    def close(self) -> None:
        """End the worker, which leaves nothing open and no thread."""
        self.may_hear.set()
        for generation in self.generations.values():
            generation.gate.set()
        for engine in self._engines:
            engine.close()
        self.recovery.close()
        assert self.registrar.is_closed
        assert not any(thread.is_alive() for thread in self.recovery._threads)
        for generation in self.generations.values():
            generation.close()
            generation.link.close()

    def _hear(self, news: Assignment | OfferResize) -> None:
        assert self.may_hear.wait(LIMIT_SECONDS)
        self.heard.put(news)


@pytest.fixture
def make_stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Makes a worker that has not begun."""
    made: list[Stage] = []
    with ThreadPoolExecutor() as pool:

        def make(*, late: bool = False) -> Stage:
            made.append(Stage(pool, late=late))
            monkeypatch.setattr(formation_module, "form", made[-1].form)
            monkeypatch.setattr(formation_module, "connect", connect)
            return made[-1]

        yield make
        for stage in made:
            stage.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A worker that has not begun."""
    return make_stage()


def submit(engine: Engine, name: str = "x") -> Handle[list[torch.Tensor]]:
    members = engine.find_members(GLOBAL_SET, name)
    return engine.submit(Allreduce([torch.ones(1)], SUM, members, f"allreduce.{name}"))


def test_an_interrupted_worker_continues_where_it_stands(stage: Stage) -> None:
    engine = stage.begin(size=3)
    handle = submit(engine)
    stage.generations[5].lose()
    call = stage.interrupt()
    assert (call.after, call.report.reason) == (5, JoinReason.CONTINUE)
    assert call.report.error in {"", LOST}  # of which it has heard in two ways
    assert [pending.name for pending in call.report.pending] == ["allreduce.x"]
    assert not call.report.has_state
    stage.may_hear.clear()
    call.answer(publish(6, Action.RETRY, (0,)))
    waiting = stage.pool.submit(engine.wait, handle)
    with pytest.raises(TimeoutError):  # the program gets its new size before the result that was made with it
        waiting.result(0.1)
    stage.may_hear.set()
    assert waiting.result(LIMIT_SECONDS)[0].tolist() == [1.0]
    assert stage.heard.get_nowait() == ALONE
    assert (stage.recovery.generation, engine.generation) == (6, 6)


def test_the_others_need_not_wait_for_the_end_of_the_former_connections(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.begin(size=3)
    is_over = threading.Event()
    monkeypatch.setattr(Succession, "disconnect", lambda _: is_over.wait(LIMIT_SECONDS))
    stage.interrupt().answer(publish(6, Action.RETRY, (0,)))
    is_over.set()
    assert stage.read_heard() == ALONE


@pytest.mark.parametrize("is_early", [True, False])
def test_the_exit_of_another_worker_with_0_is_passed_on_to_the_sequencer(stage: Stage, *, is_early: bool) -> None:
    departed = Depart(5, Worker(Slot("localhost", 1), 1), 1)
    if is_early:  # before the program has taken the generation, or after
        stage.registrar.notify(departed)
    stage.begin(size=3)
    if not is_early:
        stage.registrar.notify(departed)
    assert stage.generations[5].sequencer.read() == (Frame.DEPARTED, encode_number(1))


def test_trouble_is_reported_once_however_often_it_is_noticed(stage: Stage) -> None:
    stage.begin()
    stage.recovery.note_failure(5, "the sequencer has ended")
    stage.recovery.note_failure(5, "allreduce 'x' failed")
    call = stage.registrar.read()
    assert (call.after, call.report.error) == (5, "the sequencer has ended")
    stage.registrar.notify(Interrupt(5, "the sequencer has ended"))
    call.answer(publish(6, Action.RETRY, (0,)))
    assert stage.read_heard() == ALONE
    assert stage.registrar.calls.empty()


def test_events_of_an_earlier_generation_are_ignored(stage: Stage) -> None:
    stage.begin()
    stage.registrar.notify(Interrupt(4, "long ago"))
    stage.recovery.note_failure(4, "long ago")
    stage.registrar.notify(make_offer(5))
    assert stage.read_heard() == make_offer(5)
    call = stage.interrupt()
    stage.registrar.notify(make_offer(5, 2))  # to ranks that are not there any more
    stage.registrar.notify(Interrupt(5, LOST))
    call.answer(publish(6, Action.RETRY, (0,)))
    stage.registrar.notify(make_offer(6, 3))
    assert {stage.read_heard(), stage.read_heard()} == {ALONE, make_offer(6, 3)}
    assert stage.registrar.calls.empty()


def test_a_loss_that_is_reported_before_the_generation_is_published_abandons_it(stage: Stage) -> None:
    stage.begin(size=3)
    call = stage.interrupt()
    stage.registrar.notify(Interrupt(6, "rank 2 was lost"))  # by another way, and so too early
    stage.registrar.notify(make_offer(9))
    stage.read_heard()  # wait until the offer has been heard
    call.answer(publish(6, Action.RETRY, (0, 2), size=2))
    again = stage.registrar.read()
    assert (again.after, again.report.reason) == (6, JoinReason.CONTINUE)
    again.answer(publish(7, Action.RETRY, (0,)))
    assert stage.read_heard() == ALONE


def wait_until_closed(generation: PlayedGeneration) -> None:
    """Of a formation that was abandoned, whose thread is abandoned."""
    generation.gate.set()
    for thread in threading.enumerate():
        if thread.name == "hvd-formation":
            thread.join(LIMIT_SECONDS)
    assert generation.is_closed


def test_a_second_loss_while_forming_begins_anew_and_closes_what_comes_of_the_first(stage: Stage) -> None:
    engine = stage.begin(size=3)
    handle = submit(engine)
    stage.generations[5].lose()
    stage.interrupt().answer(publish(6, Action.RETRY, (0, 2), size=2))
    again = stage.interrupt(6, "rank 2 was lost")
    assert (again.after, again.report.reason) == (6, JoinReason.CONTINUE)
    assert [pending.ranks for pending in again.report.pending] == [(0, 1)]
    again.answer(publish(7, Action.RETRY, (0,)))
    assert engine.wait(handle)[0].tolist() == [1.0]
    wait_until_closed(stage.generations[6])


def test_a_loss_while_the_program_takes_the_generation_interrupts_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*arguments: Any) -> Engine:
        stage.registrar.notify(Interrupt(5, LOST))
        wait_until(lambda: stage.recovery._interrupted.generation == 5, "the notice")
        time.sleep(0.1)  # for the recovery, which waits for the program
        return Engine(*arguments)

    monkeypatch.setattr(recovery_module, "Engine", take)
    engine = stage.begin()
    call = stage.registrar.read()
    assert (call.after, call.report.reason) == (5, JoinReason.CONTINUE)
    call.answer(publish(6, Action.RETRY, (0,)))
    assert stage.read_heard() == ALONE
    assert engine.wait(submit(engine))[0].tolist() == [1.0]


def test_a_worker_that_is_interrupted_before_it_was_connected_forms_anew(stage: Stage) -> None:
    entering = stage.enter(JoinReason.BEGIN)
    stage.registrar.read().answer(publish(5, Action.BEGIN, size=3))
    again = stage.interrupt()
    assert (again.after, again.report.reason, again.report.pending) == (5, JoinReason.FORM, ())
    again.answer(publish(6, Action.BEGIN))
    assert entering.result(LIMIT_SECONDS)[1].generation == 6
    wait_until_closed(stage.generations[5])


@pytest.mark.parametrize(
    ("action", "raised", "words"),
    [
        (Action.RESTORE, HorovodInternalError, f"allreduce 'x' was interrupted: {LOST}"),
        (Action.RESIZE, HostsUpdatedInterrupt, "the hosts of the job have changed"),
    ],
)
def test_a_decision_that_begins_again_is_raised_and_the_program_takes_the_generation(
    stage: Stage, action: Action, raised: type[Exception], words: str
) -> None:
    engine = stage.begin(size=3)
    handle = submit(engine)
    stage.generations[5].lose()
    stage.interrupt().answer(publish(6, action))
    with pytest.raises(raised, match=words):
        engine.wait(handle)
    _, entered, decision = stage.enter(JoinReason.RESTORE).result(LIMIT_SECONDS)
    assert entered is not engine
    assert (entered.generation, decision.action) == (6, action)
    assert stage.registrar.calls.empty()


def test_a_program_that_begins_again_by_itself_says_why(stage: Stage) -> None:
    engine = stage.begin()
    with stage.recovery.declare():
        entering = stage.enter(JoinReason.RESTORE, "allreduce 'x': shapes differ")
        call = stage.registrar.read()
    assert (call.after, call.report.reason, call.report.error) == (
        5,
        JoinReason.RESTORE,
        "allreduce 'x': shapes differ",
    )
    assert call.report.has_state
    call.answer(publish(6, Action.RESTORE))
    assert entering.result(LIMIT_SECONDS)[1] is not engine
    with pytest.raises(HorovodInternalError, match="not been initialized"):
        submit(engine)


def test_a_program_that_begins_again_by_itself_reports_its_completed_operations(stage: Stage) -> None:
    """Else the others, who have done it with this rank, would seem to be wrong."""
    engine, generation = stage.begin(size=3), stage.generations[5]
    handle = engine.submit(CommitRound(engine.find_members(GLOBAL_SET, "commit"), 1))
    generation.sequencer.read_names(1)
    generation.release(0, index=7)
    engine.wait(handle)
    stage.recovery.note_commit()
    entering = stage.enter(JoinReason.RESTORE, "it broke")
    call = stage.registrar.read()
    call.answer(publish(6, Action.RESTORE))
    entering.result(LIMIT_SECONDS)[1].close()
    completed = (CompletedOperation((0, 1, 2), "commit", 7, 1),)
    assert call.report == Report(JoinReason.RESTORE, "it broke", completed=completed, seen=7, commits=1)
    assert generation.is_closed


def test_a_program_that_begins_again_while_it_is_taken_on_leaves_that_generation(stage: Stage) -> None:
    """The program has an error of its own just when a rank is lost, and the decision does not know of the error yet."""
    stage.begin()
    call = stage.interrupt()
    entering = stage.enter(JoinReason.RESIZE)
    call.answer(publish(6, Action.RETRY, (0,)))
    again = stage.registrar.read()
    assert (again.after, again.report.reason) == (6, JoinReason.RESIZE)
    again.answer(publish(7, Action.RESIZE))
    assert entering.result(LIMIT_SECONDS)[1].generation == 7


def test_a_worker_that_is_refused_raises_wherever_it_is(stage: Stage) -> None:
    engine = stage.begin()
    call = stage.interrupt()
    handle = submit(engine)
    call.answer(RendezvousError("this worker was replaced by incarnation 2"))
    with pytest.raises(HorovodInternalError, match=r"allreduce 'x' can no longer run: this worker was replaced"):
        engine.wait(handle)
    with pytest.raises(RendezvousError, match="was replaced"):
        stage.enter(JoinReason.RESTORE).result(LIMIT_SECONDS)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_worker_that_cannot_stop_what_is_under_way_ends_to_be_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, is_own: bool
) -> None:
    """As a communicator of NCCL whose abort does not return: the program may wait for its GPU for ever."""
    codes = SimpleQueue[int]()
    stage.begin(size=3)
    stage.generations[5].played.is_stuck = True
    monkeypatch.setattr(os, "_exit", codes.put)
    if is_own:
        entering = stage.enter(JoinReason.RESTORE, "it broke")
    else:
        stage.registrar.notify(Interrupt(5, LOST))
    assert codes.get(timeout=LIMIT_SECONDS) == 1
    assert "hvdrun: this worker exits, to be replaced: an operation on its GPU" in capfd.readouterr().err
    if is_own:  # the test continues where the process would not
        stage.registrar.read().answer(publish(6, Action.RESTORE))
        entering.result(LIMIT_SECONDS)[1].close()
    else:
        assert stage.registrar.calls.empty()


def test_closing_leaves_no_connection_open_and_waits_for_abandoned_formations_too(stage: Stage) -> None:
    """A thread that comes back from gloo when Python has gone would end the process with SIGABRT."""
    engine = stage.begin(size=3)
    stage.generations[5].lose()
    stage.interrupt().answer(publish(6, Action.RETRY, (0, 2), size=2))
    stage.interrupt(6).answer(publish(7, Action.RETRY, (0, 1), size=2))
    engine.close()
    closing = stage.pool.submit(stage.recovery.close)
    for number in (7, 6):
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        stage.generations[number].gate.set()
    closing.result(LIMIT_SECONDS)
    assert all(generation.is_closed for generation in stage.generations.values())


def test_a_state_is_declared_once_and_ends_with_its_function(stage: Stage) -> None:
    stage.begin()
    with stage.recovery.declare(), stage.recovery.declare():
        assert stage.interrupt().report.has_state
    assert stage.registrar.declared == [False]


def test_a_newcomer_needs_the_state_until_it_has_received_it(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(late=True)
    entering = stage.enter(JoinReason.BEGIN)
    call = stage.registrar.read()
    assert call.report.needs_state
    call.answer(publish(5, Action.RESIZE))
    entering.result(LIMIT_SECONDS)
    with stage.recovery.declare():
        stage.recovery.note_synced()
        assert not stage.interrupt().report.needs_state
    assert stage.registrar.declared == [True, False]


def test_a_rendezvous_that_is_gone_is_reported_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.begin()
    stage.registrar.notify(RendezvousError("the agent has ended"))
    stage.recovery._threads[1].join(LIMIT_SECONDS)
    assert caplog.messages == ["this worker receives no more notices of the job: the agent has ended"]


def test_a_fault_of_the_thread_that_reads_notices_ends_all_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stage.begin(size=3)
    handle = submit(engine)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(Succession, "note_interrupted", lambda *_: 1 / 0)
    stage.interrupt()
    with pytest.raises(
        HorovodInternalError, match=r"this worker receives no more notices of the job \(ZeroDivisionError"
    ):
        engine.wait(handle)


def test_a_fault_of_the_recovery_ends_all_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stage.begin()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(Succession, "adopt", lambda *_: 1 / 0)
    stage.interrupt().answer(publish(6, Action.RETRY, (0,)))
    with pytest.raises(HorovodInternalError, match=r"this worker can no longer recover \(ZeroDivisionError"):
        engine.wait(submit(engine))
