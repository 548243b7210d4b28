"""How a worker's end reaches the others: what it says itself, and what the rendezvous knows of it."""

import threading

import pytest

from tests.worker_runtime.conversation import LIMIT_SECONDS
from tests.worker_runtime.generation import Generation, make_executor, retry
from worker_runtime.collectives.agreements import AddSet
from worker_runtime.core.questions import GLOBAL_SET
from worker_runtime.elastic_executor import ElasticExecutor
from worker_runtime.errors import HorovodInternalError
from worker_runtime.executor import Executor
from worker_runtime.wire import Frame, decode_number


def read_departed(generation: Generation) -> int:
    """The rank that the sequencer is told of next."""
    kind, body = generation.sequencer.read()
    assert kind == Frame.DEPARTED
    return decode_number(memoryview(body))


def suspend(executor: ElasticExecutor, before: Generation) -> None:
    """After the loss of rank 1; the process set {0, 2} is known."""
    members = executor.find_members(GLOBAL_SET, "x")
    handle = executor.submit(AddSet((0, 2), members, "add_process_set.1", 1))
    before.sequencer.read_names(1)
    before.release_set(0, 1, (0, 2))
    handle.wait()
    before.lose()
    executor.suspend("rank 1 was lost")
    executor.adopt(2, 0, 2, retry(0, 2))


def test_only_in_a_job_that_survives_it_the_exit_code_decides_what_an_end_means(before: Generation) -> None:
    executor = make_executor(before)
    executor.close(is_end=True)
    assert before.sequencer.read() == (Frame.EXIT, b"")
    with Generation(3) as other:
        static = Executor(other.group, other.link)
        static.close(is_end=True)
        assert other.sequencer.read() == (Frame.END, b"")


def test_shutdown_is_a_goodbye_at_once(before: Generation) -> None:
    make_executor(before).close()
    assert before.sequencer.read() == (Frame.LEAVE, b"")


def test_who_has_ended_well_is_told_to_the_sequencer_of_its_generation(before: Generation) -> None:
    executor = make_executor(before)
    executor.note_departed(7, 1)
    executor.note_departed(1, 2)
    assert read_departed(before) == 2
    executor.close()
    executor.note_departed(1, 1)  # nobody is there to be told
    assert before.sequencer.read() == (Frame.LEAVE, b"")


def test_who_has_ended_well_before_all_were_connected_is_told_then(before: Generation, after: Generation) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    executor.note_departed(1, 0)
    executor.note_departed(2, 1)
    resuming = threading.Thread(target=executor.resume, args=(after.group, after.link))
    resuming.start()
    assert read_departed(after) == 1
    assert after.sequencer.read_names(1) == ["add_process_set.1"]
    after.release_set(0, 1, (0, 1))
    resuming.join(LIMIT_SECONDS)
    assert not resuming.is_alive()
    executor.close()


def test_while_process_sets_are_made_known_a_loss_is_heard_of(before: Generation, after: Generation) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    raised: list[HorovodInternalError] = []

    def resume() -> None:
        try:
            executor.resume(after.group, after.link)
        except HorovodInternalError as error:
            raised.append(error)

    resuming = threading.Thread(target=resume)
    resuming.start()
    after.sequencer.read_names(1)
    executor.note_interrupted(2, "rank 1 failed")
    while (frame := after.sequencer.read())[0] != Frame.HALT:
        pass
    assert frame[1] == b"rank 1 failed"
    after.sequencer.send(Frame.FAILURE, frame[1])
    resuming.join(LIMIT_SECONDS)
    assert "rank 1 failed" in str(raised)
    executor.close()


def test_a_loss_that_was_heard_of_before_all_were_connected_is_not_waited_for(
    before: Generation, after: Generation
) -> None:
    executor = make_executor(before)
    suspend(executor, before)
    executor.note_interrupted(2, "rank 1 failed")
    with pytest.raises(HorovodInternalError, match="the generation was interrupted"):
        executor.resume(after.group, after.link)
    executor.close()
