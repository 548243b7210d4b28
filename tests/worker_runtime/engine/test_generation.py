"""One generation as an executor goes through it, and how a worker's end reaches the others."""

import threading
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from tests.worker_runtime.conversation import Echo, Errand
from tests.worker_runtime.generation import PlayedGeneration, make_executor, retry
from worker_runtime.collectives.agreements import AddSet
from worker_runtime.coordination.handle import Handle
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Release
from worker_runtime.coordination.wire import Frame, decode_number
from worker_runtime.engine.elastic_engine import ElasticEngine
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.errors import HorovodInternalError

ANSWER = memoryview(b"answered")


class Owner:
    """Notes what an attempt tells its executor."""

    silence_seconds = 30.0

    def __init__(self) -> None:
        self.told: list[str] = []
        self.askers: set[int] = set()
        self.find_join_device = lambda: None
        self.note_release = lambda terms: self.told.append(f"released {terms.question.name}")
        self.refuse = lambda handle, reason, **_: self.told.append(f"refused {handle.title}: {reason}")
        self.end_attempt = lambda attempt, reason: self.told.append(f"ended {attempt.number}: {reason}")

    def conclude(self, handles: Sequence[Handle[object]], terms: Sequence[Release], results: Sequence[object]) -> None:
        """As `Owner`."""
        assert len(results) == len(handles)
        self.told += [f"settled {handle.title} {term.index}" for handle, term in zip(handles, terms, strict=True)]


@pytest.fixture
def generation() -> Iterator[PlayedGeneration]:
    """Of two members."""
    with PlayedGeneration(7) as made:
        yield made


@pytest.fixture
def owner() -> Owner:
    """Whose operations run."""
    return Owner()


@pytest.fixture
def attempt(generation: PlayedGeneration, owner: Owner) -> Iterator[Generation]:
    """One that is connected."""
    made = Generation(owner, threading.RLock(), 7, 0, 2)
    made.connect(generation.group, generation.link)
    yield made
    made.close(())


def make_handle(name: str = "x") -> Handle[bytes]:
    return Handle(Echo(name))


def make_terms(handle: Handle[bytes], index: int = 5) -> Release:
    return Release(index, handle.operation.question, (0, 1))


def test_what_is_released_after_the_end_does_not_begin(attempt: Generation, owner: Owner) -> None:
    handle = make_handle()
    attempt.end()
    attempt.perform(handle, make_terms(handle), ANSWER)
    attempt.refuse(handle, "the ranks do not agree", is_deadlock=False)
    assert not handle.is_answered
    assert owner.told == ["released x"]


def test_what_was_begun_when_a_signal_s_handler_raises_is_not_waited_for(attempt: Generation) -> None:
    handle = make_handle()
    with mock.patch.object(Handle, "begin", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        attempt.perform(handle, make_terms(handle), ANSWER)
    assert attempt.runner.is_unsure  # else its group would be destroyed, which waits for what nobody knows of
    assert not attempt.runner.close(())


def test_results_of_a_burst_count_only_before_the_end(attempt: Generation, owner: Owner) -> None:
    handles = [make_handle("a"), make_handle("b")]
    terms = [make_terms(handle, index) for index, handle in enumerate(handles)]
    assert not attempt.conclude(handles, terms, lambda: None)
    assert attempt.conclude(handles, terms, lambda: [b"1", b"2"])
    assert owner.told == ["settled a 0", "settled b 1"]
    late = make_handle("late")
    attempt.end()
    assert attempt.conclude([late], [make_terms(late, 2)], lambda: pytest.fail("they would be written in place"))
    assert not late.is_answered


def test_a_failure_interrupts_what_runs_and_its_first_reason_stays(
    attempt: Generation, owner: Owner, generation: PlayedGeneration
) -> None:
    work = generation.played.barrier()
    attempt.give_up("rank 1 was lost")
    assert work.is_bad
    attempt.give_up("the connection is broken")
    assert attempt.failure == "rank 1 was lost"
    assert owner.told == ["ended 7: rank 1 was lost", "ended 7: the connection is broken"]
    assert not generation.is_closed


def test_one_that_is_not_connected_runs_nothing_and_closes(owner: Owner) -> None:
    attempt = Generation(owner, threading.RLock(), 8, 1, 3)
    assert (attempt.driver, attempt.count_members(0), attempt.list_members(0)) == (None, 3, (0, 1, 2))
    assert attempt.close(())


def read_departed(generation: PlayedGeneration) -> int:
    """The rank that the sequencer is told of next."""
    kind, body = generation.sequencer.read()
    assert kind == Frame.DEPARTED
    return decode_number(memoryview(body))


def suspend(executor: ElasticEngine, before: PlayedGeneration) -> None:
    """After the loss of rank 1; the process set {0, 2} is known."""
    members = executor.find_members(GLOBAL_SET, "x")
    handle = executor.submit(AddSet((0, 2), members, "add_process_set.1", 1))
    before.sequencer.read_names(1)
    before.release_set(0, 1, (0, 2))
    executor.wait(handle)
    before.lose()
    executor.suspend("rank 1 was lost")
    executor.adopt(2, 0, 2, retry(0, 2))


def test_only_in_a_job_that_survives_it_the_exit_code_decides_what_an_end_means(before: PlayedGeneration) -> None:
    executor = make_executor(before)
    executor.close(end="ended")
    assert before.sequencer.read() == (Frame.EXIT, b"\0ended")
    with PlayedGeneration(3) as other:
        static = Engine(other.group, other.link)
        static.close(end="ended (ValueError: no such luck)")
        assert other.sequencer.read() == (Frame.END, b"\0ended (ValueError: no such luck)")


def test_who_has_ended_well_is_told_to_the_sequencer_of_its_generation(before: PlayedGeneration) -> None:
    executor = make_executor(before)
    executor.note_departed(7, 1)
    executor.note_departed(1, 2)
    assert read_departed(before) == 2
    executor.close()
    executor.note_departed(1, 1)  # nobody is there to be told
    assert before.sequencer.read() == (Frame.LEAVE, b"")


def test_who_has_ended_well_before_all_were_connected_is_told_then(
    before: PlayedGeneration, after: PlayedGeneration
) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    executor.note_departed(1, 0)
    executor.note_departed(2, 1)
    resuming = Errand(executor.resume, after.group, after.link)
    assert read_departed(after) == 1
    assert after.sequencer.read_names(1) == ["add_process_set.1"]
    after.release_set(0, 1, (0, 1))
    resuming.finish()
    executor.close()


def test_while_process_sets_are_made_known_a_loss_is_heard_of(
    before: PlayedGeneration, after: PlayedGeneration
) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    resuming = Errand(executor.resume, after.group, after.link)
    after.sequencer.read_names(1)
    executor.note_interrupted(2, "rank 1 failed")
    while (frame := after.sequencer.read())[0] != Frame.HALT:
        pass
    assert frame[1] == b"rank 1 failed"
    after.sequencer.send(Frame.FAILURE, frame[1])
    with pytest.raises(HorovodInternalError, match="rank 1 failed"):
        resuming.finish()
    executor.close()


def test_a_loss_that_was_heard_of_before_all_were_connected_is_not_waited_for(
    before: PlayedGeneration, after: PlayedGeneration
) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    executor.note_interrupted(2, "rank 1 failed")
    with pytest.raises(HorovodInternalError, match="the generation was interrupted"):
        executor.resume(after.group, after.link)
    executor.close()
