"""The orders of a round wait for the port that the host of rank 0 reserves; those to that host do not."""

from dataclasses import replace

from hvdrun.hosts.masters import Masters
from rendezvous.core.messages import Launch
from rendezvous.core.model import Assignment, Endpoint, Round, Slot, Worker
from rendezvous.wire.orders import Reserved

FIRST, SECOND = Endpoint("10.0.0.1", 5000), Endpoint("10.0.0.2", 6000)


def make_launches(number: int, *hosts: str) -> list[Launch]:
    """The start of a round with one worker on each of these hosts."""
    size = len(hosts)
    return [
        Launch(
            Worker(Slot(host, 0), number + 1),
            Assignment(rank, size, 0, 1, rank, size),
            "placed",
            round=Round(number, rank, size),
        )
        for rank, host in enumerate(hosts)
    ]


def with_master(launch: Launch, master: Endpoint) -> Launch:
    assert launch.round is not None
    return replace(launch, round=replace(launch.round, master=master))


def test_other_hosts_get_their_orders_with_the_port() -> None:
    sent: list[Launch] = []
    masters, (first, other) = Masters(sent.append), make_launches(0, "a", "b")
    masters.order(first)
    masters.order(other)
    assert sent == [first]
    masters.note_reserved(Reserved(FIRST, 0))
    assert sent == [first, with_master(other, FIRST)]
    masters.order(other)  # an order that was lost
    assert sent[2:] == [with_master(other, FIRST)]


def test_a_round_waits_for_its_own_port() -> None:
    sent: list[Launch] = []
    masters = Masters(sent.append)
    for launch in (*make_launches(0, "a", "b"), *make_launches(1, "b", "a")):
        masters.order(launch)
    masters.note_reserved(Reserved(FIRST, 0))  # late
    masters.note_reserved(Reserved(SECOND, 1))
    first, (second, other) = make_launches(0, "a", "b")[0], make_launches(1, "b", "a")
    assert sent == [first, second, with_master(other, SECOND)]


def test_an_order_that_waits_can_be_withdrawn() -> None:
    sent: list[Launch] = []
    masters, (first, other) = Masters(sent.append), make_launches(0, "a", "b")
    masters.order(first)
    masters.order(other)
    assert [masters.withdraw(each.worker) for each in (first, other, other)] == [False, True, False]
    masters.note_reserved(Reserved(FIRST, 0))
    assert sent == [first]


def test_a_worker_that_starts_alone_waits_for_nothing() -> None:
    sent: list[Launch] = []
    masters, (first, other) = Masters(sent.append), make_launches(0, "a", "b")
    alone = replace(other, round=None)
    masters.order(first)
    masters.order(alone)
    assert sent == [first, alone]


def test_another_server_of_the_job_learns_the_port_of_the_round_again() -> None:
    sent: list[Launch] = []
    masters, (first, other) = Masters(sent.append), make_launches(3, "a", "b")
    masters.restore(3, "a")
    masters.order(other)
    masters.order(first)
    assert sent == [first]
    masters.note_reserved(Reserved(FIRST, 3))
    assert sent == [first, with_master(other, FIRST)]
