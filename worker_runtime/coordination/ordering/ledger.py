"""Which samples of an epoch were processed: the history of how they were dealt out, and how far each rank has got.

The samples of an epoch stand in one order, the same on all ranks. A deal lays out what is left of them in rows, with
one place for each rank: rank r of n gets the places r, r + n, r + 2n and so on, and what is missing in the last row is
taken from the beginning once more (padding). The ranks go through their places side by side, a batch of rows at a time.
So it is enough to note how many rows were processed, and which ranks were absent; from that any rank can work out
which samples are left, and in which order. An epoch without a loss is one deal of one run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

SampleT = TypeVar("SampleT")

# A ledger in plain numbers: for each deal its ranks and its runs, for each run its rows and the absent ranks.
Packed: TypeAlias = tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Rows that the same ranks have processed.

    rows: how many.
    absent: ranks of the deal that took no part, ascending.

    Raises:
        ValueError: there is no row.
    """

    rows: int
    absent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a run has {self.rows} rows; it must have at least one")


@dataclass(frozen=True, slots=True)
class Deal:
    """How what was left was dealt out, and what was processed of it.

    num_replicas: among how many ranks.
    runs: one after the other; no two neighbours have the same ranks absent.

    Raises:
        ValueError: there are no ranks, or one that is absent is none of them.
    """

    num_replicas: int
    runs: tuple[SharedRows, ...] = ()

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"samples cannot be dealt out among {self.num_replicas} ranks")
        if unknown := {rank for run in self.runs for rank in run.absent} - set(range(self.num_replicas)):
            raise ValueError(f"{sorted(unknown)} are no ranks of a deal among {self.num_replicas}")

    @property
    def rows(self) -> int:
        """How many rows were processed, by some rank at least."""
        return sum(run.rows for run in self.runs)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have processed all that was processed by some."""
        return not any(run.absent for run in self.runs)

    @property
    def num_places(self) -> int:
        """How many places were processed, padding included."""
        return sum(run.rows * (self.num_replicas - len(run.absent)) for run in self.runs)

    def record(self, rows: int, absent: Iterable[int] = ()) -> Self:
        """The deal with the next rows processed by all ranks but the absent ones."""
        run = SharedRows(rows, tuple(sorted(absent)))
        former = self.runs
        if former and former[-1].absent == run.absent:
            former, run = former[:-1], SharedRows(former[-1].rows + rows, run.absent)
        return type(self)(self.num_replicas, (*former, run))

    def list_left(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """Which of the samples that were dealt out are left, in their order.

        A sample that stands in two places is processed when one of them is.
        """
        missed: list[int] = []
        row = 0
        for run in self.runs:
            missed += [place * self.num_replicas + rank for place in range(row, row + run.rows) for rank in run.absent]
            row += run.rows
        count, reached = len(samples), row * self.num_replicas
        if missed and reached > count > 0:
            padded = {place % count for place in set(range(count, reached)).difference(missed)}
            missed = [place for place in missed if place < count and place not in padded]
        return [samples[place] for place in missed if place < count] + list(samples[reached:])


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was processed of one epoch.

    deals: one after the other, each of what the former ones have left.
    """

    deals: tuple[Deal, ...] = ()

    @classmethod
    def skip(cls, count: int) -> Self:
        """The first samples are processed."""
        return cls((Deal(1, (SharedRows(count),)),)) if count > 0 else cls()

    def deal(self, num_replicas: int) -> Self:
        """The ledger with what is left dealt out again; a deal of which nothing was processed is forgotten.

        Where all of as many ranks are as far as each other, their deal continues: so a job that is started again pads
        as it would have done.
        """
        used = self._list_used()
        goes_on = bool(used) and used[-1].num_replicas == num_replicas and used[-1].is_whole
        return type(self)(used if goes_on else (*used, Deal(num_replicas)))

    def record(self, rows: int, absent: Iterable[int] = ()) -> Self:
        """The ledger with the next rows of the last deal processed by all its ranks but the absent ones.

        Raises:
            ValueError: nothing was dealt out, there are no rows, or an absent rank is none of the deal.
        """
        if not self.deals:
            raise ValueError("rows cannot be recorded before samples were dealt out; call deal() first")
        return type(self)((*self.deals[:-1], self.deals[-1].record(rows, absent)))

    def list_dealt(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """Which of an epoch's samples, given in their order, the last deal has laid out."""
        return type(self)(self.deals[:-1]).list_left(samples)

    def list_left(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """Which of an epoch's samples, given in their order, are left, in the same order but for those once missed.

        Those that an absent rank has missed come before those that no rank has reached.
        """
        left = list(samples)
        for deal in self.deals:
            left = deal.list_left(left)
        return left

    def pack(self) -> Packed:
        """The ledger in plain numbers; see `unpack`."""
        return tuple(
            (deal.num_replicas, tuple((run.rows, run.absent) for run in deal.runs)) for deal in self._list_used()
        )

    @classmethod
    def unpack(cls, packed: Iterable[Any]) -> Self:
        """A ledger that was packed; lists may stand for tuples, as after a way through JSON.

        Raises:
            ValueError, TypeError: it is none.
        """
        return cls(
            tuple(
                Deal(num_replicas, tuple(SharedRows(rows, tuple(absent)) for rows, absent in runs))
                for num_replicas, runs in packed
            )
        )

    def _list_used(self) -> tuple[Deal, ...]:
        return tuple(deal for deal in self.deals if deal.runs)
