"""What stands before a worker's line."""

from datetime import datetime

import pytest

from hvdrun.console.marks import Marks

NOON = datetime.fromisoformat("2026-01-31T12:00:00.123999+02:00")


@pytest.mark.parametrize(
    ("marks", "mark"),
    [
        (Marks(), b"[3] "),
        (Marks(hosts=True), b"[3@server1] "),
        (Marks(times=True), b"2026-01-31T12:00:00.123 [3] "),
        (Marks(hosts=True, times=True), b"2026-01-31T12:00:00.123 [3@server1] "),
        (Marks(ranks=False), b""),
        (Marks(ranks=False, hosts=True), b""),
        (Marks(ranks=False, times=True), b"2026-01-31T12:00:00.123 "),
        (Marks(hosts=True, horovod=True), b"[3]<stdout>:"),
        (Marks(horovod=True, times=True), b"Sat Jan 31 12:00:00 2026[3]<stdout>:"),
        (Marks(horovod=True, ranks=False), b""),
    ],
)
def test_a_mark_has_the_requested_parts(marks: Marks, mark: bytes) -> None:
    assert marks.render(3, "server1", NOON, coloured=False) == mark


def test_a_time_has_three_digits_of_milliseconds() -> None:
    mark = Marks(times=True).render(0, "a", NOON.replace(microsecond=7000), coloured=False)
    assert mark == b"2026-01-31T12:00:00.007 [0] "


def test_only_the_name_is_coloured_and_the_text_has_the_terminals_own_colour() -> None:
    mark = Marks(times=True).render(0, "a", NOON, coloured=True)
    assert mark == b"2026-01-31T12:00:00.123 \x1b[36m[0]\x1b[39m "


def test_neighbouring_ranks_have_different_colours_and_no_rank_is_red() -> None:
    colours = [
        Marks().render(rank, "a", NOON, coloured=True).partition(b"[")[2].partition(b"m")[0] for rank in range(40)
    ]
    assert all(len(set(colours[rank : rank + 10])) == 10 for rank in range(30))
    assert b"31" not in colours
    assert b"91" not in colours


def test_without_a_name_there_is_nothing_to_colour() -> None:
    assert Marks(ranks=False).render(0, "a", NOON, coloured=True) == b""
