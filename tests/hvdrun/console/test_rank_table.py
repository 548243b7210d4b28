"""Which rank a worker has: launched with one, moved by generations, and the last one when it is in none."""

from hvdrun.console.marks import RankTable
from rendezvous.core.messages import Launch
from rendezvous.core.model import Assignment, Generation, Slot, Worker

A, B, C = (Worker(Slot(host, 0), 1) for host in "abc")


def make_launch(worker: Worker, rank: int) -> Launch:
    return Launch(worker, Assignment(rank, 3, 0, 1, rank, 3), "placed")


def test_a_rank_follows_the_generations() -> None:
    generation: Generation | None = None
    book = RankTable(lambda: generation)
    for rank, worker in enumerate((A, B, C)):
        book.note_launch(make_launch(worker, rank))
    assert [book.find_rank(worker) for worker in (A, B, C)] == [0, 1, 2]
    generation = Generation(1, (A, B, C))
    assert [book.find_rank(worker) for worker in (A, B, C)] == [0, 1, 2]
    generation = Generation(2, (B, C))
    assert [book.find_rank(worker) for worker in (A, B, C)] == [0, 0, 1]
    book.note_launch(make_launch(C, 2))  # said again, as orders are
    assert book.find_rank(C) == 1


def test_a_replacement_has_a_rank_of_its_own() -> None:
    book = RankTable(lambda: None)
    again = Worker(B.slot, 2)
    book.note_launch(make_launch(B, 1))
    book.note_launch(make_launch(again, 2))
    assert (book.find_rank(B), book.find_rank(again)) == (1, 2)
    book.forget(B)
    assert (book.find_rank(B), book.find_rank(again)) == (0, 2)
