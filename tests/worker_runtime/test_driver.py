"""The conversation with the sequencer, whose part a test plays on the other end of a socket pair.

Long because each way in which it can go, or end, has its test here.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker_runtime.conversation import LIMIT_SECONDS, SUM, Player, Sequencer
from worker_runtime import background, waiting, wire
from worker_runtime.core.questions import Question, Release
from worker_runtime.link import Link
from worker_runtime.mentions import Mention
from worker_runtime.wire import Frame


@pytest.fixture
def ends() -> Iterator[tuple[Player, Sequencer]]:
    ours, theirs = socket.socketpair()
    player, sequencer = Player(ours), Sequencer(theirs)
    yield player, sequencer
    player.driver.leave()
    sequencer.close()


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def body() -> None:
        try:
            results.append(function())
        except Exception as error:  # noqa: BLE001 - told to the test
            results.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, results


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def count_driver_threads() -> int:
    return sum(thread.name == "hvd-driver" for thread in threading.enumerate())


def test_a_caller_who_waits_gets_his_answer_and_needs_no_thread(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    before = count_driver_threads()
    thread, results = in_thread(lambda: (sequencer.read_names(1), sequencer.release(0)))
    assert player.run("x") == b"answered"
    thread.join(LIMIT_SECONDS)
    assert results == [(["x"], None)]
    assert sequencer.frames == [Frame.SIGNATURE, Frame.ASK]
    assert count_driver_threads() == before


def test_a_signature_is_sent_once(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    for number in range(3):
        thread, _ = in_thread(lambda number=number: (sequencer.read_names(1), sequencer.release(number)))  # type: ignore[misc]  # a default is how it keeps the number
        player.run(f"{number}")
        thread.join(LIMIT_SECONDS)
    assert sequencer.frames == [Frame.SIGNATURE, Frame.ASK, Frame.ASK, Frame.ASK]


def test_a_burst_is_few_messages_and_answers_may_come_in_any_order(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handles = [player.submit(str(index)) for index in range(1000)]
    assert sequencer.read_names(1000) == [str(index) for index in range(1000)]
    assert len(sequencer.frames) < 100
    sequencer.release(*reversed(range(1000)))
    assert {handle.wait() for handle in handles} == {b"answered"}


def test_what_nobody_waits_for_is_sent_and_answered_in_the_background(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handle = player.submit("x")
    assert sequencer.read_names(1) == ["x"]
    sequencer.release(0)
    wait_until(handle.is_done)
    assert handle.wait() == b"answered"


def test_more_may_be_asked_while_the_background_waits(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    first = player.submit("first")
    assert sequencer.read_names(1) == ["first"]
    second = player.submit("second")
    assert sequencer.read_names(1) == ["second"]
    sequencer.release(1, 0)
    assert second.wait() == first.wait() == b"answered"


def test_what_a_caller_waits_for_is_sent_while_another_thread_drives(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    first = player.submit("first")
    assert sequencer.read_names(1) == ["first"]
    began = time.monotonic()
    thread, results = in_thread(lambda: player.run("second"))
    assert sequencer.read_names(1) == ["second"]
    assert time.monotonic() - began < 0.5  # earlier than the background stops to listen by itself
    sequencer.release(1, 0)
    thread.join(LIMIT_SECONDS)
    assert (first.wait(), results) == (b"answered", [b"answered"])


def test_what_is_asked_at_once_does_not_linger(ends: tuple[Player, Sequencer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LINGER_SECONDS", LIMIT_SECONDS / 5)
    player, sequencer = ends
    began = time.monotonic()
    handle = player.submit("x", at_once=True)
    assert sequencer.read_names(1) == ["x"]
    sequencer.release(0)
    while not handle.is_answered:
        player.driver.progress()
    assert time.monotonic() - began < LIMIT_SECONDS / 5


def test_several_threads_wait_at_once(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    waiting = [in_thread(lambda name=name: player.run(name)) for name in "abcd"]  # type: ignore[misc]  # the same
    names = sequencer.read_names(4)
    for number in (2, 0, 3, 1):
        sequencer.release(number, payload=names[number].encode())
    for name, (thread, results) in zip("abcd", waiting, strict=True):
        thread.join(LIMIT_SECONDS)
        assert results == [name.encode()]


def test_an_answer_may_come_in_pieces_and_with_others(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handles = [player.submit(str(index)) for index in range(3)]
    sequencer.read_names(3)
    parts = [
        wire.encode_frame(
            Frame.RELEASES, wire.encode_releases(number, Release(0, Question(0, "", SUM), (0, 1)), [b"abc"])
        )
        for number in range(3)
    ]
    data = b"".join(parts)
    for offset in range(0, len(data), 7):
        sequencer.send_bytes(data[offset : offset + 7])
    assert [handle.wait() for handle in handles] == [b"abc"] * 3


def test_a_large_answer_arrives_whole(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    payload = os.urandom(3_000_000)
    thread, _ = in_thread(lambda: (sequencer.read_names(1), sequencer.release(0, payload=payload)))
    assert player.run("x") == payload
    thread.join(LIMIT_SECONDS)


def test_a_refusal_concerns_one_operation(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    refused, other = player.submit("refused"), player.submit("other")
    sequencer.read_names(2)
    sequencer.send(Frame.REFUSAL, wire.encode_numbered(0, "Mismatched data types"))
    sequencer.release(1)
    with pytest.raises(RuntimeError, match="Mismatched data types"):
        refused.wait()
    assert other.wait() == b"answered"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda sequencer: sequencer.send(Frame.FAILURE, b"rank 1 has gone"), "rank 1 has gone"),
        (lambda sequencer: sequencer.close(), "the sequencer has ended"),
        (lambda sequencer: sequencer.send(99), "frame of type 99"),
    ],
)
def test_a_failure_ends_all_that_waits(
    ends: tuple[Player, Sequencer], act: Callable[[Sequencer], None], reason: str
) -> None:
    player, sequencer = ends
    handles = [player.submit("a"), player.submit("b")]
    sequencer.read_names(2)
    act(sequencer)
    for handle in handles:
        with pytest.raises(RuntimeError, match=reason):
            handle.wait()
    assert len(player.ended) == 1


def test_a_joined_rank_takes_part_and_a_stall_is_logged(
    ends: tuple[Player, Sequencer], caplog: pytest.LogCaptureFixture
) -> None:
    player, sequencer = ends
    release = Release(4, Question(0, "allreduce.x", SUM), (0, 1), (0,))
    joining = player.submit("join")
    sequencer.read_names(1)
    with caplog.at_level(logging.WARNING):
        sequencer.send(Frame.NEUTRAL, wire.encode_neutral(release))
        sequencer.send(Frame.STALL, b"Missing ranks: 1")
        sequencer.release(0)
        joining.wait()
    assert player.neutral == [release]
    assert [record.getMessage() for record in caplog.records] == ["Missing ranks: 1"]


def test_a_rank_whose_only_thread_waits_says_so(
    ends: tuple[Player, Sequencer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that has never asked, which here plays the sequencer, does not count."""
    monkeypatch.setattr(waiting, "_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: False)  # the time limit of a test is a timer
    player, sequencer = ends
    told: list[object] = []

    def answer() -> None:
        sequencer.read_names(1)
        told.extend(sequencer.read() for _ in range(2))
        sequencer.release(0)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    assert player.run("x") == b"answered"
    thread.join(LIMIT_SECONDS)
    assert told == [(Frame.IDLE, wire.encode_number(0)), (Frame.BLOCKED, wire.encode_blocked(0, is_blocked=True))]


@pytest.mark.parametrize("is_daemon", [False, True])
def test_a_rank_does_not_say_so_while_another_thread_may_still_ask(
    ends: tuple[Player, Sequencer], monkeypatch: pytest.MonkeyPatch, *, is_daemon: bool
) -> None:
    """It may be computing; a daemon counts when it has asked before."""
    monkeypatch.setattr(waiting, "_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: False)  # the time limit of a test is a timer
    player, sequencer = ends
    begin, end = threading.Event(), threading.Event()

    def compute() -> None:
        if is_daemon:
            player.run("first")
        begin.set()
        end.wait(LIMIT_SECONDS)

    def answer() -> None:
        begin.wait(LIMIT_SECONDS)
        time.sleep(0.2)  # no event tells that nothing is said
        sequencer.read_names(1)
        sequencer.release(1 if is_daemon else 0)

    other = threading.Thread(target=compute, daemon=is_daemon)
    other.start()
    if is_daemon:
        sequencer.read_names(1)
        sequencer.release(0)
    begin.wait(LIMIT_SECONDS)
    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    assert player.run("x") == b"answered"
    end.set()
    for thread in (other, answering):
        thread.join(LIMIT_SECONDS)
    assert Frame.BLOCKED not in sequencer.frames


def test_a_rank_that_is_interrupted_while_it_waits_takes_it_back(
    ends: tuple[Player, Sequencer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: False)  # the time limit of a test is a timer
    player, sequencer = ends
    receive = Link.receive
    calls = iter(range(100))

    def receive_until_interrupted(link: Link, wait_seconds: float | None) -> Iterator[tuple[int, memoryview]]:
        if next(calls) > 3:
            raise KeyboardInterrupt
        return receive(link, wait_seconds)

    monkeypatch.setattr(Link, "receive", receive_until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        player.run("x")
    sequencer.read_names(1)
    assert sequencer.read() == (Frame.IDLE, wire.encode_number(0))
    assert sequencer.read() == (Frame.BLOCKED, wire.encode_blocked(0, is_blocked=True))
    assert sequencer.read() == (Frame.BLOCKED, wire.encode_blocked(0, is_blocked=False))


def test_a_rank_whose_other_thread_could_act_does_not_say_that_it_is_blocked(
    ends: tuple[Player, Sequencer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: False)  # the time limit of a test is a timer
    player, sequencer = ends
    mine = player.submit("mine")
    thread, results = in_thread(lambda: player.run("other"))
    sequencer.read_names(2)
    time.sleep(0.2)  # no event tells that nothing is said
    sequencer.release(0, 1)
    assert mine.wait() == b"answered"
    thread.join(LIMIT_SECONDS)
    assert results == [b"answered"]
    assert Frame.BLOCKED not in sequencer.frames


class Optimizer:
    """Asks for one operation when it is wanted; `threads` are those in which it was asked to help."""

    def __init__(self, player: Player) -> None:
        self.threads: list[int] = []
        self._player = player

    def help(self, mention: Mention) -> bool:
        """Without waiting."""
        self.threads.append(threading.get_ident())
        self._player.submit(mention.name)
        return True


@pytest.mark.parametrize("is_driven", [False, True])
def test_who_waits_has_what_is_wanted_asked_also_when_another_thread_drives(
    ends: tuple[Player, Sequencer], *, is_driven: bool
) -> None:
    player, sequencer = ends
    helper = Optimizer(player)
    player.accord.add_helper(helper)
    if is_driven:
        player.submit("background")
        assert sequencer.read_names(1) == ["background"]

    def answer() -> None:
        sequencer.read_names(1)
        assert sequencer.read() == (Frame.IDLE, wire.encode_number(int(is_driven)))
        sequencer.send(Frame.WANTED, Mention(0, "bucket", "").encode())
        assert sequencer.read_names(1) == ["bucket"]
        sequencer.release(int(is_driven) + 1, int(is_driven))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    assert player.run("metric") == b"answered"
    thread.join(LIMIT_SECONDS)
    assert helper.threads == [threading.get_ident()]


def test_what_is_wanted_of_a_rank_that_does_not_wait_is_left_to_its_program(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    helper = Optimizer(player)
    player.accord.add_helper(helper)
    handle = player.submit("x")
    sequencer.read_names(1)
    sequencer.send(Frame.WANTED, Mention(0, "bucket", "").encode())
    sequencer.release(0)
    wait_until(handle.is_done)
    assert (helper.threads, player.accord.is_wanted) == ([], False)


def test_a_restart_is_heard_before_the_refusals_that_follow(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handle = player.submit("x")
    sequencer.read_names(1)
    sequencer.send(Frame.RESTART)
    sequencer.send(Frame.REFUSAL, wire.encode_numbered(0, "every rank waits"))
    with pytest.raises(RuntimeError, match="every rank waits"):
        handle.wait()
    assert player.accord.restarts == 1


def test_what_is_given_up_is_told_at_once_behind_what_was_asked(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    player.submit("x", is_awaited=True)
    player.driver.tell(Mention(0, "alltoall.a", "ValueError: wrong"))
    assert sequencer.read_names(1) == ["x"]
    assert sequencer.read() == (Frame.GIVE_UP, Mention(0, "alltoall.a", "ValueError: wrong").encode())
    player.driver.leave()
    player.driver.tell(Mention(0, "alltoall.a", "ValueError: too late"))


def test_leaving_says_goodbye_and_leaves_no_thread_and_no_descriptor() -> None:
    descriptors = count_descriptors()
    threads = threading.active_count()
    for _ in range(20):
        ours, theirs = socket.socketpair()
        player, sequencer = Player(ours), Sequencer(theirs)
        player.submit("x")
        assert sequencer.read_names(1) == ["x"]
        player.driver.leave()
        assert sequencer.read() == (Frame.LEAVE, b"")
        sequencer.close()
    assert count_descriptors() <= descriptors
    assert threading.active_count() == threads


def test_goodbye_is_said_once_with_the_reason_for_which_others_cannot_go_on(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    player.driver.quit(lambda: "it failed")
    player.driver.leave(lambda: "later")
    assert sequencer.read() == (Frame.LEAVE, b"it failed")
    with pytest.raises(AssertionError, match="ended the connection"):
        sequencer.read()


def test_leaving_while_another_thread_waits_wakes_it(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handle = player.submit("x", is_awaited=True)
    thread, _ = in_thread(lambda: player.await_answer(handle))  # type: ignore[arg-type]  # its result is not asked for
    sequencer.read_names(1)
    began = time.monotonic()
    player.driver.leave()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    assert time.monotonic() - began < 0.9  # earlier than the receive's own limit


def test_a_forked_child_has_no_part_in_it(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handle = player.submit("x")
    sequencer.read_names(1)
    child = os.fork()
    if child == 0:
        player.driver.abandon()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sequencer.release(0)
    assert handle.wait() == b"answered"


def test_nothing_happens_while_nothing_is_pending(ends: tuple[Player, Sequencer]) -> None:
    player, sequencer = ends
    handle = player.submit("x")
    sequencer.read_names(1)
    sequencer.release(0)
    handle.wait()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hvd-driver"]
    wait_until(lambda: count_switches(thread) == count_switches(thread, after_seconds=0.1))
    before = count_switches(thread)
    assert count_switches(thread, after_seconds=0.5) == before


def count_switches(thread: threading.Thread, after_seconds: float = 0.0) -> int:
    """How often the thread has slept, after a while."""
    time.sleep(after_seconds)  # no event tells that nothing happens
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
