"""The conversation with the sequencer, whose part a test plays on the other end of a socket pair."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.waiting import LIMIT_SECONDS, wait_until
from tests.worker_runtime.conversation import SUM, Errand, Player, Sequencer, converse
from worker_runtime.coordination import wire
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import ReceivedResponse
from worker_runtime.coordination.ordering.requests import Release, Request
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.errors import ShutDownError

Ends = tuple[Player, Sequencer]
BLOCKED, FREE = ((Frame.BLOCKED, wire.encode_blocked(0, is_blocked=each)) for each in (True, False))


@pytest.fixture
def ends() -> Iterator[Ends]:
    with converse() as both:
        yield both


@pytest.fixture
def hasty() -> Iterator[Ends]:
    """A rank that says soon that it is blocked."""
    with converse(0.02) as both:
        yield both


@pytest.fixture
def patient() -> Iterator[Ends]:
    """A rank that looks at nothing by itself for longer than a test lasts."""
    with converse(3 * LIMIT_SECONDS) as both:
        yield both


def count_driver_threads() -> int:
    return sum(thread.name == "hvd-driver" for thread in threading.enumerate())


def test_a_caller_that_waits_needs_no_thread_and_a_signature_is_sent_once(ends: Ends) -> None:
    player, sequencer = ends
    before = count_driver_threads()
    for number in range(3):
        answering = Errand(lambda number=number: (sequencer.read_names(1), sequencer.release(number)))
        assert player.run(f"{number}") == b"answered"
        assert answering.finish() == ([f"{number}"], None)
    assert sequencer.frames == [Frame.SIGNATURE, Frame.REQUESTS, Frame.REQUESTS, Frame.REQUESTS]
    assert count_driver_threads() == before


def test_a_burst_is_few_messages_and_responses_may_come_in_any_order(ends: Ends) -> None:
    player, sequencer = ends
    handles = [player.submit(str(index)) for index in range(1000)]
    assert sequencer.read_names(1000) == [str(index) for index in range(1000)]
    assert len(sequencer.frames) < 100
    sequencer.release(*reversed(range(1000)))
    assert {player.wait(handle) for handle in handles} == {b"answered"}


def test_more_requests_may_be_sent_while_the_background_waits_for_a_response(ends: Ends) -> None:
    player, sequencer = ends
    handles = []
    for name in ("first", "second"):
        handles.append(player.submit(name))
        assert sequencer.read_names(1) == [name]
    sequencer.release(1, 0)
    wait_until(lambda: all(handle.is_done() for handle in handles), "a response that no thread waits for")


def test_a_callers_request_is_sent_while_another_thread_listens(patient: Ends) -> None:
    player, sequencer = patient
    first = Errand(player.run, "first")
    assert sequencer.read_names(1) == ["first"]
    second = Errand(player.run, "second")
    assert sequencer.read_names(1) == ["second"]
    sequencer.release(1, 0)
    assert (first.finish(), second.finish()) == (b"answered", b"answered")


def test_a_request_without_delay_is_sent_by_its_caller(ends: Ends) -> None:
    player, sequencer = ends
    handle = player.submit("x", at_once=True, is_awaited=True)  # so that no thread drives
    assert sequencer.read_names(1) == ["x"]
    sequencer.release(0)
    while not handle.is_answered:
        player.driver.progress()


def test_several_threads_wait_at_the_same_time(patient: Ends) -> None:
    player, sequencer = patient
    waiting = {name: Errand(player.run, name) for name in "abcd"}
    names = sequencer.read_names(4)
    time.sleep(0.1)  # they look at nothing by themselves any more, which no event shows
    for number in (2, 0, 3, 1):
        sequencer.release(number, payload=names[number].encode())
    assert {name: errand.finish() for name, errand in waiting.items()} == {name: name.encode() for name in "abcd"}


def test_a_response_may_come_in_pieces_and_with_others(ends: Ends) -> None:
    player, sequencer = ends
    handles = [player.submit(str(index)) for index in range(3)]
    sequencer.read_names(3)
    release = Release(0, Request(0, "", SUM), (0, 1))
    responses = [wire.encode_releases(number, release, [b"abc"]) for number in range(3)]
    data = b"".join(wire.encode_frame(Frame.RELEASES, response) for response in responses)
    for offset in range(0, len(data), 7):
        sequencer.send_bytes(data[offset : offset + 7])
    assert [player.wait(handle) for handle in handles] == [b"abc"] * 3


def test_a_large_response_arrives_whole(ends: Ends) -> None:
    player, sequencer = ends
    payload = os.urandom(3_000_000)
    answering = Errand(lambda: (sequencer.read_names(1), sequencer.release(0, payload=payload)))
    assert player.run("x") == payload
    answering.finish()


def test_a_refusal_concerns_one_operation(ends: Ends) -> None:
    player, sequencer = ends
    refused, other = player.submit("refused"), player.submit("other")
    sequencer.read_names(2)
    sequencer.send(Frame.REFUSAL, wire.encode_numbered(0, "Mismatched data types"))
    sequencer.release(1)
    with pytest.raises(RuntimeError, match="Mismatched data types"):
        player.wait(refused)
    assert player.wait(other) == b"answered"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda sequencer: sequencer.send(Frame.FAILURE, b"rank 1 has gone"), "rank 1 has gone"),
        (lambda sequencer: sequencer.close(), "the sequencer has ended"),
        (lambda sequencer: sequencer.send(99), "frame of the unknown type 99"),
    ],
)
def test_a_failure_ends_all_that_waits(ends: Ends, act: Callable[[Sequencer], None], reason: str) -> None:
    player, sequencer = ends
    handles = [player.submit("a"), player.submit("b")]
    sequencer.read_names(2)
    act(sequencer)
    for handle in handles:
        with pytest.raises(RuntimeError, match=reason):
            player.wait(handle)
    assert len(player.ended) == 1


def test_a_fault_in_the_background_ends_all_that_waits(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    player, _ = ends

    def fail(_: Link) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(Link, "flush", fail)
    handle = player.submit("x")
    wait_until(lambda: handle.is_failed, "the end of an operation that cannot be sent")
    assert player.ended == ["rank 0 has failed: no such luck"]
    monkeypatch.undo()


def test_a_joined_rank_takes_part_and_a_stall_is_logged(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    player, sequencer = ends
    release = Release(4, Request(0, "allreduce.x", SUM), (0, 1), (0,))
    joining = player.submit("join")
    sequencer.read_names(1)
    with caplog.at_level(logging.WARNING):
        sequencer.send(Frame.NEUTRAL, wire.encode_neutral(release))
        sequencer.send(Frame.STALL, b"Missing ranks: 1")
        sequencer.release(0)
        player.wait(joining)
    assert player.neutral == [release]
    assert [record.getMessage() for record in caplog.records] == ["Missing ranks: 1"]


def test_a_rank_whose_only_thread_waits_says_that_it_is_blocked(hasty: Ends) -> None:
    """A daemon that has never asked, which here plays the sequencer, does not count."""
    player, sequencer = hasty

    def answer() -> list[object]:
        reported = [sequencer.read_names(1), sequencer.read()]
        sequencer.release(0)
        return reported

    answering = Errand(answer, daemon=True)
    assert player.run("x") == b"answered"
    assert answering.finish() == [["x"], BLOCKED]


def test_a_rank_that_is_interrupted_while_it_waits_is_no_longer_blocked(
    hasty: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    player, sequencer = hasty
    receive, calls = Link.receive, iter(range(100))

    def receive_until_interrupted(link: Link, wait_seconds: float | None) -> Iterator[tuple[int, memoryview]]:
        if next(calls) > 2:
            raise KeyboardInterrupt
        return receive(link, wait_seconds)

    monkeypatch.setattr(Link, "receive", receive_until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        player.run("x")
    sequencer.read_names(1)
    assert [sequencer.read() for _ in range(2)] == [BLOCKED, FREE]


@pytest.mark.parametrize("has_asked", [False, True])
def test_a_rank_with_another_thread_that_may_ask_is_never_blocked(hasty: Ends, *, has_asked: bool) -> None:
    """A daemon may if it has asked before."""
    player, sequencer = hasty
    end = threading.Event()
    other = Errand(end.wait, daemon=has_asked)
    player.askers.add(other.ident or 0)
    waiting = player.submit("x", is_awaited=True)
    answering = Errand(lambda: (sequencer.read_names(1), time.sleep(0.2), sequencer.release(0)), daemon=True)
    assert player.wait(waiting) == b"answered"
    answering.finish()
    end.set()
    other.finish()
    player.driver.leave()
    assert sequencer.read()[0] == Frame.LEAVE  # and has said nothing before


def test_leaving_leaves_no_thread_and_no_descriptor() -> None:
    before = len(list_settled_descriptors()), threading.active_count()
    for _ in range(20):
        with converse() as (player, sequencer):
            player.submit("x")
            assert sequencer.read_names(1) == ["x"]
    assert len(list_descriptors()) <= before[0]
    assert threading.active_count() <= before[1]


def test_one_farewell_is_sent_with_the_reason_why_others_cannot_continue(ends: Ends) -> None:
    player, sequencer = ends
    player.driver.quit(lambda: Farewell("it failed"))
    player.driver.leave(lambda: Farewell("later"))
    assert sequencer.read() == (Frame.LEAVE, b"it failed")
    with pytest.raises(AssertionError, match="ended the connection"):
        sequencer.read()


def test_leaving_wakes_a_thread_that_waits(patient: Ends) -> None:
    player, sequencer = patient
    waiting = Errand(player.run, "x")
    assert sequencer.read_names(1) == ["x"]
    player.driver.leave()
    with pytest.raises(ShutDownError):
        waiting.finish()


def test_a_halt_does_not_wait_for_messages_of_another_thread(patient: Ends) -> None:
    player, sequencer = patient
    waiting = Errand(player.run, "x")
    assert sequencer.read_names(1) == ["x"]
    halting = Errand(player.driver.halt, "rank 1 was lost", 3 * LIMIT_SECONDS, daemon=True)
    assert sequencer.read()[0] == Frame.HALT
    sequencer.send(Frame.FAILURE, b"rank 1 was lost")
    with pytest.raises(RuntimeError, match="rank 1 was lost"):
        waiting.finish()
    halting.finish()


def test_no_lock_of_what_is_sent_is_held_while_the_end_is_carried_out(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    player, sequencer = ends
    others: list[Errand] = []

    def carry_out(response: ReceivedResponse) -> None:  # the engine waits here for a lock; another thread may ask
        others.append(Errand(player.driver.report_departed, 1, daemon=True))
        others[0].finish()
        player.carry_out(response)

    monkeypatch.setattr(player.driver, "_carry_out", carry_out)
    sequencer.close()
    player.submit("x", at_once=True, is_awaited=True)
    assert len(player.ended) == len(others) == 1


def test_a_forked_child_has_no_part_in_the_conversation(ends: Ends) -> None:
    player, sequencer = ends
    handle = player.submit("x")
    sequencer.read_names(1)
    child = os.fork()
    if child == 0:
        player.driver.abandon()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sequencer.release(0)
    assert player.wait(handle) == b"answered"
