"""The real process: what ranks ask of it, what they receive, and what it does with those that break the rules."""

import json
import random
import select
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.worker_runtime.coordination.sequencer.client import (
    BARRIER,
    JOIN,
    PLAIN,
    Client,
    Process,
    connected,
    exchange,
    floats,
    gathering,
    summing,
)
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Signature
from worker_runtime.coordination.wire import Farewell, Frame


def test_all_ranks_receive_one_order_however_they_ask(process: Process) -> None:
    chance = random.Random(7)  # noqa: S311 - a story, not a secret
    with gathering(process, 3) as clients:
        names = [f"allreduce.{number}" for number in range(300)]
        asked: list[list[str]] = []
        for client in clients:
            chance.shuffle(names)
            asked.append(list(names))
            client.declare(summing(count=1))
        for start in range(0, len(names), 7):  # in pieces, the ranks taking turns
            for client, own in zip(clients, asked, strict=True):
                requests = [client.encode(name, summing(count=1), floats(client.rank)) for name in own[start:][:7]]
                client.send(Frame.REQUESTS, b"".join(requests))
                client.count(len(requests))
        orders = []
        for client, own in zip(clients, asked, strict=True):
            releases = [client.released() for _ in names]
            assert {bytes(released.payload) for released in releases} == {floats(3)}
            assert [released.index for released in releases] == list(range(len(names)))
            orders.append([own[released.number] for released in releases])
        assert orders[0] == orders[1] == orders[2]


def test_a_stop_notice_comes_before_the_same_release_to_all_and_before_the_first_of_the_next_generation() -> None:
    with Process() as process:  # none that later tests share: it never forgets
        with gathering(process, 2) as clients:
            for client in clients:
                client.ask("allreduce.a", PLAIN)
            assert [client.released().index for client in clients] == [0, 0]
            process.order(b"stop")
            for client in clients:
                assert client.read_text(Frame.STOPPING).encode() == wire.encode_index(1)
                client.ask("allreduce.b", PLAIN)
            assert [client.released().index for client in clients] == [1, 1]
        with gathering(process, 2) as clients:
            assert {client.read_text(Frame.STOPPING).encode() for client in clients} == {wire.encode_index(0)}


def test_joined_ranks_are_ordered_to_contribute_nothing_of_value(process: Process) -> None:
    with gathering(process, 3) as clients:
        assert clients[2].ask("join", JOIN) == 0
        for client in clients[:2]:
            client.ask("allreduce.a", summing(count=1), floats(client.rank + 1))
            client.ask("allreduce.b", PLAIN)
        for client in clients[:2]:
            first, second = client.released(), client.released()
            assert (bytes(first.payload), first.joined, second.joined) == (floats(3), (2,), (2,))
        for name, signature in (("allreduce.a", summing(count=1)), ("allreduce.b", PLAIN)):
            kind, release = clients[2].response()
            assert kind is Frame.NEUTRAL
            assert (release.request.name, release.request.signature) == (name, signature)
            assert (release.members, release.joined) == ((0, 1, 2), (2,))
        for client in clients[:2]:
            client.ask("join", JOIN)
        last = {client.released().value for client in clients}
        assert last in ({0}, {1})  # the sequencer may read either connection first


def test_sets_are_added_and_used(process: Process) -> None:
    add = Signature(Kind.ADD_SET)
    with gathering(process, 3) as clients:
        for client in clients:
            client.ask("add", add, sizes=(0, 2), set_size=3)
        assert [client.released().value for client in clients] == [1, 1, 1]
        for client in (clients[0], clients[2]):
            client.ask("a", summing(count=1), floats(client.rank + 1), process_set=1)
            assert client.rank == 0 or bytes(client.released().payload) == floats(4)
        assert bytes(clients[0].released().payload) == floats(4)


def test_a_deadlock_is_broken(process: Process) -> None:
    with gathering(process, 2) as clients:
        for client in clients:
            client.ask(f"a{client.rank}", BARRIER)
            client.send(Frame.BLOCKED, wire.encode_blocked(0, is_blocked=True))
        for client in clients:
            assert "a0" in client.read_text(Frame.DEADLOCK)


def test_a_call_that_is_given_up_is_refused_to_the_others_with_its_error(process: Process) -> None:
    with gathering(process, 2) as (first, second):
        first.ask("alltoall.a", BARRIER)
        second.ask("alltoall.a", Signature(Kind.FAIL, note="ValueError: no\u00e9\ud800"))
        for client in (first, second):
            text = client.read_text(Frame.REFUSAL)
            assert text == "alltoall 'a' failed on rank 1 before anything was sent: ValueError: no\u00e9\\ud800"
        exchange([first, second], "alltoall.a")


def test_a_rank_that_waits_no_longer_is_in_no_deadlock(process: Process) -> None:
    with gathering(process, 2) as (first, second):
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


def is_silent(client: Client) -> bool:
    """Nothing is reported in the time in which the end of another's connection is, by far."""
    return not select.select([client.socket], [], [], 0.2)[0]


@pytest.mark.parametrize("kind", [Frame.LEAVE, Frame.END, Frame.EXIT])
def test_a_rank_that_leaves_in_the_middle_is_lost_for_its_reason(process: Process, kind: Frame) -> None:
    with gathering(process, 3) as (first, second, third):
        first.send(kind, b"it was in the middle")
        assert is_silent(second) is (kind is not Frame.LEAVE)
        first.socket.close()
        for client in (second, third):
            assert client.read_text(Frame.FAILURE) == "rank 0 was lost: it was in the middle"


def test_a_rank_that_has_ended_has_said_how(process: Process) -> None:
    with gathering(process, 2) as (first, second):
        first.send(Frame.END, Farewell("", "ended (ValueError: no such luck)").encode())
        first.socket.close()
        second.ask("a", BARRIER)
        assert second.read_text(Frame.REFUSAL).startswith("rank 0 ended (ValueError: no such luck), and a needs it.")


@pytest.mark.parametrize(
    ("how", "reported"),
    [
        ("", "ended without an error"),
        ("ended", "ended without an error"),
        ("ended with 0 at train.py:4", "ended with 0 at train.py:4"),
    ],
)
def test_the_job_says_what_an_exit_means_and_until_then_nothing_is_released(
    process: Process, how: str, reported: str
) -> None:
    with gathering(process, 3) as (first, second, third):
        first.ask("a", BARRIER)
        first.send(Frame.EXIT, Farewell("", how).encode())
        first.socket.close()
        assert is_silent(second)
        for client in (second, third):
            client.ask("a", BARRIER)
        assert is_silent(second)
        third.send(Frame.DEPARTED, wire.encode_number(0))
        third.send(Frame.DEPARTED, wire.encode_number(0))
        for client in (second, third):
            assert f"rank 0 {reported}, and " in client.read_text(Frame.REFUSAL)
        second.ask("b", BARRIER)
        assert f"rank 0 {reported}, and " in second.read_text(Frame.REFUSAL)


def test_an_exit_that_is_a_loss_is_reported_as_the_job_reports_it(process: Process) -> None:
    with gathering(process, 2) as (first, second):
        first.send(Frame.EXIT)
        first.socket.close()
        second.ask("a", BARRIER)
        assert is_silent(second)
        second.send(Frame.HALT, b"it failed with exit code 3")
        assert second.read_text(Frame.FAILURE) == "it failed with exit code 3"


@pytest.mark.parametrize("goodbye", [True, False])
def test_requests_before_a_good_end_count_though_the_end_is_known(process: Process, *, goodbye: bool) -> None:
    with gathering(process, 2) as (first, second):
        second.send(Frame.DEPARTED, wire.encode_number(0))
        assert is_silent(second)
        first.ask("a", BARRIER)
        second.ask("a", BARRIER)
        assert second.released().index == first.released().index == 0
        if goodbye:
            first.send(Frame.EXIT)
        first.socket.close()
        second.ask("b", BARRIER)
        assert "rank 0 ended without an error, and " in second.read_text(Frame.REFUSAL)


def test_a_rank_that_ends_well_before_it_has_come_is_not_missed(process: Process) -> None:
    generation = process.begin(2)
    with connected(process, 0, generation) as first:
        first.ask("a", BARRIER)
        first.send(Frame.DEPARTED, wire.encode_number(1))
        assert "rank 1 ended without an error, and " in first.read_text(Frame.REFUSAL)


def test_goodbye_right_after_the_last_request_loses_nothing(process: Process) -> None:
    with gathering(process, 2) as (first, second):
        first.declare(summing())
        ask = wire.encode_frame(Frame.REQUESTS, first.encode("a", summing(), bytes(64)))
        second.ask("a", summing(), bytes(64))
        exchange([first, second])  # so that the second has asked
        first.count(1)
        first.socket.sendall(ask + wire.encode_frame(Frame.LEAVE))
        assert second.released().index == 1


def test_the_end_of_a_rank_s_connection_is_reported_to_all(process: Process) -> None:
    with gathering(process, 3) as (first, second, third):
        second.ask("a", PLAIN)
        third.ask("a", PLAIN)
        second.socket.close()
        for client in (first, third):
            assert client.read_text(Frame.FAILURE) == "rank 1 was cut off: its connection to the sequencer ended"
        first.ask("a", PLAIN)
        first.leave()


def test_a_rank_that_comes_after_a_loss_learns_of_it(process: Process) -> None:
    generation = process.begin(2)
    with connected(process, 0, generation):
        pass
    with connected(process, 1, generation) as late:
        assert "rank 0 was cut off" in late.read_text(Frame.FAILURE)


def frame(kind: Frame, body: bytes = b"") -> Callable[[Client], bytes]:
    return lambda _: wire.encode_frame(kind, body)


def ask(*requests: bytes) -> bytes:
    return wire.encode_frame(Frame.REQUESTS, b"".join(requests))


def ask_short(client: Client) -> bytes:
    """Fewer bytes under a name than the other ranks have sent."""
    return client.encode("a", summing(), bytes(60))


# Bytes that no worker of ours sends, and what the others learn.
OFFENCES: dict[str, tuple[Callable[[Client], bytes], str]] = {
    "unknown frame": (frame(Frame.STALL), "a frame of type 20 came"),
    "no signature": (frame(Frame.SIGNATURE, b"\0\0\0\0nonsense"), "a signature was expected"),
    "unknown rank": (frame(Frame.DEPARTED, wire.encode_number(3)), "DEPARTED names rank 3 of 3"),
    "cut off": (frame(Frame.REQUESTS, wire.encode_request(0, 0, b"b")[:-1]), "a request is cut off"),
    "trailing": (lambda client: ask(client.encode("b", BARRIER), b"\0"), "a request was expected"),
    "oversized payload": (lambda client: ask(client.encode("b", summing(), bytes(8_000_000))), "is too large"),
    "unknown set": (lambda client: ask(client.encode("b", BARRIER, process_set=9)), "there is no process set 9"),
    "same name twice": (
        lambda client: ask(client.encode("b", BARRIER) * 2),
        "has requested b of process set 0 already",
    ),
    "bad block": (frame(Frame.BLOCKED, b"\0"), "a request's number and a truth value were expected"),
    "other length": (lambda client: ask(ask_short(client)), "it sent 60 bytes with 'a', and rank 0 sent 64"),
    "other length and goodbye": (
        lambda client: ask(ask_short(client)) + wire.encode_frame(Frame.LEAVE),
        "it sent 60 bytes with 'a', and rank 0 sent 64",
    ),
    "other length and more": (
        lambda client: ask(ask_short(client), client.encode("b", BARRIER) * 2),
        "has requested b of process set 0 already",
    ),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_rank_that_breaks_the_rules_is_dropped_and_named(process: Process, offence: str) -> None:
    make, reported = OFFENCES[offence]
    with gathering(process, 3) as (first, second, third):
        for client in (first, third):
            client.ask("a", summing(), bytes(64))
        for signature in (summing(), PLAIN, BARRIER):
            second.declare(signature)
        with suppress(BrokenPipeError, ConnectionResetError):
            second.socket.sendall(make(second))
        assert second.is_closed()
        for client in (first, third):
            reason = client.read_text(Frame.FAILURE)
            assert reason.startswith("rank 1 was cut off: ")
            assert reported in reason
    with gathering(process, 1) as next_ones:
        exchange(next_ones)


def test_bytes_after_a_goodbye_are_ignored(process: Process) -> None:
    with gathering(process, 2) as (first, second):
        first.ask("a", BARRIER)
        second.declare(BARRIER)
        second.socket.sendall(wire.encode_frame(Frame.LEAVE) + ask(second.encode("a", BARRIER)))
        assert second.is_closed()
        assert "shut down on rank 1" in first.read_text(Frame.REFUSAL)


def test_a_rank_0_that_records_hears_when_each_rank_had_asked(process: Process) -> None:
    with gathering(process, 2) as clients:
        clients[0].send(Frame.RECORD, b"\1")
        for name in ("a", "b"):
            for client in clients:
                client.ask(name, BARRIER)
            ((found, times),) = json.loads(clients[0].read_text(Frame.ARRIVALS))
            assert (found, set(times)) == (name, {"0", "1"})
            assert all(client.released() for client in clients)
        clients[0].send(Frame.RECORD, b"\0")
        for client in clients:
            client.ask("c", BARRIER)
        assert all(client.released() for client in clients)


def test_only_rank_0_records(process: Process) -> None:
    with gathering(process, 2) as clients:
        clients[1].send(Frame.RECORD, b"\1")
        assert "settings came from another rank than 0" in clients[0].read_text(Frame.FAILURE)
