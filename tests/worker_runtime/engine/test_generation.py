"""What an engine does with the sequencer's responses in one generation, and how a worker's end reaches the others."""

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.worker_runtime.conversation import Echo, Errand
from tests.worker_runtime.generation import PlayedGeneration, make_succession, retry
from worker_runtime.collectives.agreements import AddSet
from worker_runtime.coordination.messages import Answered, Ended, Refused
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Release
from worker_runtime.coordination.wire import Frame, decode_number
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.succession import Succession
from worker_runtime.errors import HorovodInternalError, IllegalTransitionError, OperationFailedError

RESPONSE = memoryview(b"answered")


@pytest.fixture
def generation() -> Iterator[PlayedGeneration]:
    """Of two members."""
    with PlayedGeneration(7) as made:
        yield made


@pytest.fixture
def engine(generation: PlayedGeneration) -> Iterator[Engine]:
    """An engine whose generation fails with its first loss."""
    made = Engine(generation.group, generation.link)
    yield made
    made.close()


def make_release(handle: Handle[bytes], index: int = 5) -> Release:
    return Release(index, handle.operation.request, (0, 1))


def answer(handle: Handle[bytes]) -> Answered:
    return Answered([handle], [make_release(handle)], RESPONSE, [len(RESPONSE)], None)


def test_an_operation_released_after_the_end_does_not_begin(engine: Engine) -> None:
    handle = engine.submit(Echo("x"))
    engine.current.is_over = True
    engine._carry_out(engine.current, answer(handle))
    engine._carry_out(engine.current, Refused(handle, "the ranks do not agree", is_deadlock=False))
    assert (handle.is_answered, engine.current.seen) == (False, 5)


def test_an_operation_begun_when_a_signal_s_handler_raises_is_not_waited_for(engine: Engine) -> None:
    handle = engine.submit(Echo("x"))
    with mock.patch.object(Handle, "begin", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        engine._carry_out(engine.current, answer(handle))
    assert engine.current.is_unsure  # else its group would be destroyed, which waits for an unknown operation
    assert not engine.current.close()


def test_results_of_a_burst_count_only_before_the_end(engine: Engine) -> None:
    handles = [engine.submit(Echo(name)) for name in "ab"]
    releases = [make_release(handle, index) for index, handle in enumerate(handles)]
    burst = Answered(handles, releases, RESPONSE, [4, 4], lambda: [b"1", b"2"])
    engine._carry_out(engine.current, burst)
    assert [engine.wait(handle) for handle in handles] == [b"1", b"2"]
    assert list(engine.in_flight) == []
    late = engine.submit(Echo("late"))
    engine.current.is_over = True
    unpack = mock.Mock()  # they would be written in place
    engine._carry_out(engine.current, Answered([late], [make_release(late, 2)], RESPONSE, [8], unpack))
    assert (late.is_answered, unpack.mock_calls) == (False, [])


def test_a_burst_that_cannot_be_finished_together_is_run_one_by_one(engine: Engine) -> None:
    handles = [engine.submit(Echo(name)) for name in "ab"]
    releases = [make_release(handle, index) for index, handle in enumerate(handles)]
    engine._carry_out(engine.current, Answered(handles, releases, RESPONSE, [3, 5], lambda: None))
    assert [engine.wait(handle) for handle in handles] == [b"ans", b"wered"]


def test_a_failure_interrupts_what_runs_and_its_first_reason_stays(
    engine: Engine, generation: PlayedGeneration
) -> None:
    work, handle = generation.played.barrier(), engine.submit(Echo("x"))
    engine._carry_out(engine.current, Ended("rank 1 was lost"))
    assert work.is_bad
    engine._carry_out(engine.current, Ended("the connection is broken"))
    assert engine.current.failure == "rank 1 was lost"
    with pytest.raises(OperationFailedError, match="x failed on rank 0: rank 1 was lost"):
        engine.wait(handle)
    assert not generation.is_closed


@pytest.mark.parametrize("is_elastic", [False, True])
def test_an_illegal_transition_ends_the_job_with_one_sentence_on_all_ranks(
    generation: PlayedGeneration, *, is_elastic: bool
) -> None:
    engine = make_succession(generation).engine if is_elastic else Engine(generation.group, generation.link)
    handle, other = engine.submit(Echo("x")), engine.submit(Echo("other"))
    handle.begin(make_release(handle), (), RESPONSE)
    generation.sequencer.read_names(2)
    generation.release(0)
    while (frame := generation.sequencer.read())[0] != Frame.HALT:
        pass
    sentence = "x is released and cannot become released; please report this bug of hvdrun"
    assert frame[1].decode() == f"rank 0 has failed: {sentence}"
    with pytest.raises(IllegalTransitionError if is_elastic else OperationFailedError, match=sentence):
        engine.wait(other)
    engine.close()


def test_a_generation_that_is_not_connected_runs_nothing_and_closes() -> None:
    generation = Generation(8, 1, 3)
    assert (generation.driver, generation.sets.list_ranks(0)) == (None, (0, 1, 2))
    assert generation.close()


def read_departed(generation: PlayedGeneration) -> int:
    """The rank that is reported to the sequencer next."""
    kind, body = generation.sequencer.read()
    assert kind == Frame.DEPARTED
    return decode_number(memoryview(body))


def suspend(succession: Succession, before: PlayedGeneration) -> None:
    """After the loss of rank 1; the process set {0, 2} is known."""
    engine = succession.engine
    members = engine.find_members(GLOBAL_SET, "x")
    handle = engine.submit(AddSet((0, 2), members, "add_process_set.1", 1))
    before.sequencer.read_names(1)
    before.release_set(0, 1, (0, 2))
    engine.wait(handle)
    before.lose()
    succession.suspend("rank 1 was lost")
    succession.adopt(2, 0, 2, retry(0, 2))


def test_only_in_a_job_that_survives_it_the_exit_code_decides_what_an_end_means(before: PlayedGeneration) -> None:
    succession = make_succession(before)
    succession.engine.close(end="ended")
    assert before.sequencer.read() == (Frame.EXIT, b"\0ended")
    with PlayedGeneration(3) as other:
        static = Engine(other.group, other.link)
        static.close(end="ended (ValueError: no such luck)")
        assert other.sequencer.read() == (Frame.END, b"\0ended (ValueError: no such luck)")


def test_a_rank_that_has_exited_with_0_is_reported_to_the_sequencer_of_its_generation(before: PlayedGeneration) -> None:
    succession = make_succession(before)
    succession.note_departed(7, 1)
    succession.note_departed(1, 2)
    assert read_departed(before) == 2
    succession.engine.close()
    succession.note_departed(1, 1)  # no sequencer is there to receive it
    assert before.sequencer.read() == (Frame.LEAVE, b"")


def test_a_rank_that_exits_with_0_before_all_are_connected_is_reported_after_the_connection(
    before: PlayedGeneration, after: PlayedGeneration
) -> None:
    succession = make_succession(before)
    suspend(succession, before)
    succession.note_departed(1, 0)
    succession.note_departed(2, 1)
    resuming = Errand(succession.resume, after.group, after.link)
    assert read_departed(after) == 1
    assert after.sequencer.read_names(1) == ["add_process_set.1"]
    after.release_set(0, 1, (0, 1))
    resuming.finish()
    succession.engine.close()


def test_a_loss_is_noticed_while_process_sets_are_registered(before: PlayedGeneration, after: PlayedGeneration) -> None:
    succession = make_succession(before)
    suspend(succession, before)
    resuming = Errand(succession.resume, after.group, after.link)
    after.sequencer.read_names(1)
    succession.note_interrupted(2, "rank 1 failed")
    while (frame := after.sequencer.read())[0] != Frame.HALT:
        pass
    assert frame[1] == b"rank 1 failed"
    after.sequencer.send(Frame.FAILURE, frame[1])
    with pytest.raises(HorovodInternalError, match="rank 1 failed"):
        resuming.finish()
    succession.engine.close()


def test_a_rank_that_was_lost_before_all_were_connected_is_not_waited_for(
    before: PlayedGeneration, after: PlayedGeneration
) -> None:
    succession = make_succession(before)
    suspend(succession, before)
    succession.note_interrupted(2, "rank 1 failed")
    with pytest.raises(HorovodInternalError, match="the generation was interrupted"):
        succession.resume(after.group, after.link)
    succession.engine.close()
