"""The real process: what ranks ask of it, what they are told, and what it does with those that break the rules.

Long because each rule that can be broken has its case here.
"""

import random
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.worker_runtime.sequencer.client import (
    BARRIER,
    JOIN,
    KEY,
    LIMIT_SECONDS,
    LOOPBACK,
    PLAIN,
    ROOT,
    Client,
    Process,
    connected,
    exchange,
    floats,
    serving,
    summing,
)
from worker_runtime import wire
from worker_runtime.core.questions import Kind, Release, Signature
from worker_runtime.mentions import Mention
from worker_runtime.sequencer.activation import Activation
from worker_runtime.sequencer.connection import Connection
from worker_runtime.sequencer.generation import Generation
from worker_runtime.sequencer.poller import Poller
from worker_runtime.sequencer.stall_clock import StallLimits
from worker_runtime.wire import Frame, Released

RANK = """
import sys
from tests.worker_runtime.sequencer.client import Client, Process, PLAIN
process = Process.__new__(Process)
process.address, process.port = "127.0.0.1", int(sys.argv[1])
client = Client(process, 1).await_proof()
client.ask("a", PLAIN)
print("asked", flush=True)
client.answer()
"""


def test_all_ranks_are_told_one_order_however_they_ask() -> None:
    chance = random.Random(7)  # noqa: S311 - a story, not a secret
    with serving(3) as (_, clients):
        names = [f"allreduce.{number}" for number in range(300)]
        asked: list[list[str]] = []
        for client in clients:
            chance.shuffle(names)
            asked.append(list(names))
            client.tell(summing(count=1))
        for start in range(0, len(names), 7):  # in pieces, the ranks taking turns
            for client, own in zip(clients, asked, strict=True):
                questions = [client.encode(name, summing(count=1), floats(client.rank)) for name in own[start:][:7]]
                client.send(Frame.ASK, b"".join(questions))
                client.count(len(questions))
        orders = []
        for client, own in zip(clients, asked, strict=True):
            releases = [client.released() for _ in names]
            assert {bytes(released.payload) for released in releases} == {floats(3)}
            assert [released.index for released in releases] == list(range(len(names)))
            orders.append([own[released.number] for released in releases])
        assert orders[0] == orders[1] == orders[2]


def test_a_mismatch_is_told_to_all_and_the_generation_goes_on() -> None:
    with serving(2) as (_, clients):
        clients[0].ask("allreduce.a", summing(count=16), bytes(64))
        clients[1].ask("allreduce.a", summing(count=15), bytes(60))
        for client in clients:
            kind, answer = client.answer()
            assert kind is Frame.REFUSAL
            assert isinstance(answer, tuple)
            assert answer[0] == 0
            assert "16" in answer[1]
            assert "15" in answer[1]
        exchange(clients)


def test_those_who_have_joined_are_told_to_contribute_nothing_of_value() -> None:
    with serving(3) as (_, clients):
        assert clients[2].ask("join", JOIN) == 0
        for client in clients[:2]:
            client.ask("allreduce.a", summing(count=1), floats(client.rank + 1))
            client.ask("allreduce.b", PLAIN)
        for client in clients[:2]:
            first, second = client.released(), client.released()
            assert (bytes(first.payload), first.joined, second.joined) == (floats(3), (2,), (2,))
        for name, signature in (("allreduce.a", summing(count=1)), ("allreduce.b", PLAIN)):
            kind, release = clients[2].answer()
            assert kind is Frame.NEUTRAL
            assert isinstance(release, Release)
            assert (release.question.name, release.question.signature) == (name, signature)
            assert (release.members, release.joined) == ((0, 1, 2), (2,))
        for client in clients[:2]:
            client.ask("join", JOIN)
        assert [client.released().value for client in clients] == [1, 1, 1]


def test_sets_are_added_and_used() -> None:
    add = Signature(Kind.ADD_SET)
    with serving(3) as (_, clients):
        for client in clients:
            client.ask("add", add, extents=(0, 2), set_size=3)
        assert [client.released().value for client in clients] == [1, 1, 1]
        for client in (clients[0], clients[2]):
            client.ask("a", summing(count=1), floats(client.rank + 1), process_set=1)
            assert client.rank == 0 or bytes(client.released().payload) == floats(4)
        assert bytes(clients[0].released().payload) == floats(4)


def test_a_deadlock_is_broken() -> None:
    with serving(2) as (_, clients):
        for client in clients:
            client.ask(f"a{client.rank}", BARRIER)
            client.send(Frame.BLOCKED, wire.encode_blocked(0, is_blocked=True))
        for client in clients:
            assert client.told(Frame.RESTART) == ""
            assert "a0" in client.told(Frame.REFUSAL)


def test_who_is_missed_while_all_wait_is_told_and_may_help() -> None:
    with serving(2) as (_, (first, second)):
        first.ask("metric", BARRIER)
        second.ask("bucket", summing(note="thrown away"), bytes(64))
        for client in (first, second):
            client.send(Frame.IDLE, wire.encode_number(0))
        assert second.mention() == Mention(0, "metric", "")
        assert first.mention() == Mention(0, "bucket", "thrown away")
        first.ask("bucket", summing(note="thrown away"), bytes(64))
        assert second.released().index == first.released().index == 0


def test_a_call_that_is_given_up_is_refused_to_the_others_with_its_error() -> None:
    with serving(2) as (_, (first, second)):
        first.ask("alltoall.a", BARRIER)
        second.send(Frame.GIVE_UP, Mention(0, "alltoall.a", "ValueError: no\u00e9" + 1000 * "x").encode())
        text = first.told(Frame.REFUSAL)
        assert "alltoall 'a' was given up on rank 1" in text
        assert "ValueError: no\u00e9" in text
        assert len(text) < 700
        exchange([first, second], "alltoall.a")


def test_a_question_that_is_withdrawn_is_refused_to_all_unless_it_was_answered() -> None:
    with serving(2) as (_, (first, second)):
        first.send(Frame.WITHDRAW, wire.encode_numbered(first.ask("a", BARRIER), "ValueError: why"))
        text = "a was given up on rank 0, before anything was sent: ValueError: why"
        assert first.told(Frame.REFUSAL) == text
        second.ask("a", BARRIER)
        assert second.told(Frame.REFUSAL) == text
        exchange([first, second], "a")
        first.send(Frame.WITHDRAW, wire.encode_numbered(1, "ValueError: too late"))
        exchange([first, second], "a")


def test_who_waits_no_longer_is_in_no_deadlock() -> None:
    with serving(2) as (_, (first, second)):
        first.ask("a", BARRIER)
        first.send(Frame.BLOCKED, wire.encode_blocked(0, is_blocked=True))
        first.send(Frame.BLOCKED, wire.encode_blocked(0, is_blocked=False))
        first.send(Frame.BLOCKED, wire.encode_blocked(5, is_blocked=True))  # answered long ago, or never asked
        first.ask("b", BARRIER)
        second.ask("b", BARRIER)
        assert second.released().index == first.released().index == 0
        second.ask("c", BARRIER)
        second.send(Frame.BLOCKED, wire.encode_blocked(1, is_blocked=True))
        first.ask("c", BARRIER)
        assert second.released().index == first.released().index == 1


def test_after_goodbye_the_end_of_a_connection_is_fine() -> None:
    with serving(2) as (_, (first, second)):
        second.ask("a", BARRIER)
        first.ask("mine", BARRIER)
        first.leave()
        first.socket.close()
        assert "shut down on rank 0" in second.told(Frame.REFUSAL)
        second.ask("b", BARRIER)
        assert "shut down on rank 0" in second.told(Frame.REFUSAL)


@pytest.mark.parametrize("kind", [Frame.LEAVE, Frame.END])
def test_who_says_goodbye_in_the_middle_is_lost_for_its_reason_now_or_when_it_ends(kind: Frame) -> None:
    with serving(3) as (_, (first, second, third)):
        first.send(kind, b"it was in the middle")
        assert bool(select.select([second.socket], [], [], 0.2)[0]) is (kind is Frame.LEAVE)
        first.socket.close()
        for client in (second, third):
            assert client.told(Frame.FAILURE) == "rank 0 was lost: it was in the middle"


def is_silent(client: Client) -> bool:
    """Nothing is told in the time in which the end of another's connection is, by far."""
    return not select.select([client.socket], [], [], 0.2)[0]


def test_what_an_exit_means_is_told_by_who_knows_it_and_until_then_nothing_is_released() -> None:
    with serving(3) as (_, (first, second, third)):
        first.ask("a", BARRIER)
        first.send(Frame.EXIT)
        first.socket.close()
        assert is_silent(second)
        for client in (second, third):
            client.ask("a", BARRIER)
        assert is_silent(second)
        third.send(Frame.DEPARTED, wire.encode_number(0))
        third.send(Frame.DEPARTED, wire.encode_number(0))
        for client in (second, third):
            assert "shut down on rank 0" in client.told(Frame.REFUSAL)
        second.ask("b", BARRIER)
        assert "shut down on rank 0" in second.told(Frame.REFUSAL)


def test_an_exit_that_is_a_loss_is_told_by_who_has_heard_of_it() -> None:
    with serving(2) as (_, (first, second)):
        first.send(Frame.EXIT)
        first.socket.close()
        second.ask("a", BARRIER)
        assert is_silent(second)
        second.send(Frame.HALT, b"it failed with exit code 3")
        assert second.told(Frame.FAILURE) == "it failed with exit code 3"


def test_who_exits_in_the_middle_is_lost_however_it_ends() -> None:
    with serving(2) as (_, (first, second)):
        first.send(Frame.EXIT, b"it was in the middle")
        first.socket.close()
        assert second.told(Frame.FAILURE) == "rank 0 was lost: it was in the middle"


@pytest.mark.parametrize("goodbye", [True, False])
def test_what_was_asked_before_a_good_end_counts_though_that_is_known_earlier(*, goodbye: bool) -> None:
    with serving(2) as (_, (first, second)):
        second.send(Frame.DEPARTED, wire.encode_number(0))
        assert is_silent(second)
        first.ask("a", BARRIER)
        second.ask("a", BARRIER)
        assert second.released().index == first.released().index == 0
        if goodbye:
            first.send(Frame.EXIT)
        first.socket.close()
        second.ask("b", BARRIER)
        assert "shut down on rank 0" in second.told(Frame.REFUSAL)


def test_who_ends_well_before_it_has_come_is_missed_by_nobody() -> None:
    with Process() as process:
        process.activate(1, 2)
        with connected(process, 0) as first:
            first.ask("a", BARRIER)
            first.send(Frame.DEPARTED, wire.encode_number(1))
            assert "shut down on rank 1" in first.told(Frame.REFUSAL)


def test_goodbye_right_after_the_last_question_loses_nothing() -> None:
    with serving(2) as (_, (first, second)):
        first.tell(summing())
        ask = wire.encode_frame(Frame.ASK, first.encode("a", summing(), bytes(64)))
        second.ask("a", summing(), bytes(64))
        exchange([first, second])  # so that the second has asked
        first.count(1)
        first.socket.sendall(ask + wire.encode_frame(Frame.LEAVE))
        assert second.released().index == 1


def test_the_death_of_a_rank_is_told_to_all_at_once() -> None:
    with Process() as process:
        process.activate(1, 3)
        command = [sys.executable, "-c", RANK, str(process.port)]
        with (
            connected(process, 0) as first,
            connected(process, 2) as third,
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as victim,
        ):
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"asked\n"
            third.ask("a", PLAIN)
            victim.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            for client in (first, third):
                assert client.told(Frame.FAILURE) == "rank 1 was lost: its connection to the sequencer ended"
            assert time.monotonic() - killed_at < 2
            first.ask("a", PLAIN)
            first.leave()
            assert process.popen.poll() is None


def test_who_comes_after_a_loss_is_told_of_it() -> None:
    with Process() as process:
        process.activate(1, 2)
        with connected(process, 0):
            pass
        with connected(process, 1) as late:
            assert "rank 0 was lost" in late.told(Frame.FAILURE)


def make_offence(client: Client, offence: str) -> bytes:
    """Bytes that no worker of ours sends."""
    client.tell(summing())
    client.tell(PLAIN)
    client.tell(BARRIER)
    valid = client.encode("b", summing(), bytes(64))
    ask = wire.encode_frame
    return {
        "unknown frame": ask(Frame.STALL),
        "unknown signature": ask(Frame.ASK, wire.encode_question(99, 0, b"b")),
        "no signature": ask(Frame.SIGNATURE, b"\0\0\0\0nonsense"),
        "unknown rank": ask(Frame.DEPARTED, wire.encode_number(3)),
        "cut off": ask(Frame.ASK, valid[:-1]),
        "trailing": ask(Frame.ASK, valid + b"\0"),
        "oversized frame": wire.HEADER.pack(wire.MAX_FRAME_BYTES + 1, Frame.ASK),
        "oversized payload": ask(Frame.ASK, client.encode("b", summing(), bytes(8_000_000))),
        "unknown set": ask(Frame.ASK, client.encode("b", BARRIER, process_set=9)),
        "same name twice": ask(Frame.ASK, client.encode("b", BARRIER) * 2),
        "bad blocked": ask(Frame.BLOCKED, b"\0"),
        "bad idle": ask(Frame.IDLE, b"\0"),
        "bad withdrawal": ask(Frame.WITHDRAW, b"\0"),
        "bad mention": ask(Frame.GIVE_UP, b"\0\0\7\0abc"),
        "other length": ask(Frame.ASK, client.encode("a", summing(), bytes(60))),
        "other length and goodbye": ask(Frame.ASK, client.encode("a", summing(), bytes(60))) + ask(Frame.LEAVE),
        "other length and more": ask(
            Frame.ASK, client.encode("a", summing(), bytes(60)) + client.encode("b", BARRIER) * 2
        ),
        "goodbye and more": ask(Frame.LEAVE) + ask(Frame.ASK, valid),
    }[offence]


@pytest.mark.parametrize(
    ("offence", "told"),
    [
        ("unknown frame", "a frame of type 20 came"),
        ("unknown signature", "there is no signature of the number 99"),
        ("no signature", "a signature was expected"),
        ("unknown rank", "rank 3 is said to have departed, of 3"),
        ("cut off", "a question is cut off"),
        ("trailing", "a question was expected"),
        ("oversized frame", "is longer than"),
        ("oversized payload", "8000000 bytes are too many"),
        ("unknown set", "there is no process set 9"),
        ("same name twice", "has asked b of process set 0 already"),
        ("bad idle", "a question's number was expected"),
        ("bad withdrawal", "a question's number and a text were expected"),
        ("bad mention", "the mention of an operation is cut off"),
        ("bad blocked", "a question's number and a truth value were expected"),
        ("other length", "it sent 60 bytes with 'a', and rank 0 sent 64"),
        ("other length and goodbye", "it sent 60 bytes with 'a', and rank 0 sent 64"),
        ("other length and more", "has asked b of process set 0 already"),
        ("goodbye and more", ""),
    ],
)
def test_who_breaks_the_rules_is_dropped_and_named(offence: str, told: str) -> None:
    with serving(3) as (process, clients):
        for client in (clients[0], clients[2]):
            client.ask("a", summing(), bytes(64))
        data = make_offence(clients[1], offence)
        with suppress(BrokenPipeError, ConnectionResetError):
            clients[1].socket.sendall(data)
        assert clients[1].is_closed()
        for client in (clients[0], clients[2]):
            if told:
                reason = client.told(Frame.FAILURE)
                assert reason.startswith("rank 1 was lost: ")
                assert told in reason
            else:
                assert "shut down on rank 1" in client.told(Frame.REFUSAL)
        process.activate(2, 1)
        with connected(process, 0, 2) as next_one:
            exchange([next_one])


def test_numbers_of_questions_begin_anew_after_the_last() -> None:
    poller = Poller()
    generation = Generation(Activation(1, 1, KEY), StallLimits())
    with socket.create_server((LOOPBACK, 0)) as server:
        peer = socket.create_connection(server.getsockname(), LIMIT_SECONDS)
        generation.admit(Connection(server.accept()[0], poller), 0, b"")
    generation._members[0].asked = 2**32 - 1
    with peer:
        peer.sendall(wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(0, BARRIER)))
        question = wire.encode_question(0, 0, b"a") + wire.encode_question(0, 0, b"b")
        peer.sendall(wire.encode_frame(Frame.ASK, question))
        numbers: list[int] = []
        while len(numbers) < 2:
            poller.wait(LIMIT_SECONDS)
            generation.settle()
            numbers += [released.number for released in read_releases(peer)]
        assert numbers == [2**32 - 1, 0]
    generation.close()
    poller.close()


def read_releases(peer: socket.socket) -> list[Released]:
    """Those that have come."""
    try:
        data = peer.recv(100_000, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return []
    return list(wire.decode_releases(memoryview(data)[wire.HEADER.size :], lambda _: 1))
