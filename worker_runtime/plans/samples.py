"""The ledger of an epoch: how its samples were distributed, and which of them were processed.

The samples of an epoch have one order, the same on all ranks. A deal (one distribution) arranges the unprocessed ones
in rows with one place for each rank: rank r of n gets the places r, r + n, r + 2n and so on. The last row is padded
from the beginning. The ranks process their places side by side, a batch of rows at a time. So the ledger only has the
number of processed rows, and the absent ranks. From that any rank can compute the unprocessed samples and their order.
An epoch without a loss is one deal with one run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

SampleT = TypeVar("SampleT")

# A ledger in plain numbers: for each deal its number of ranks and its runs, for each run its rows and the absent ranks.
Packed: TypeAlias = tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """A run: consecutive rows that the same ranks have processed.

    rows: the number of rows.
    absent: the ranks of the deal that took no part, ascending.

    Raises:
        ValueError: there are no rows.
    """

    rows: int
    absent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a run has {self.rows} rows; it must have at least one")


@dataclass(frozen=True, slots=True)
class Deal:
    """One distribution of the unprocessed samples, and its processed rows.

    num_replicas: the number of ranks.
    runs: the processed rows; neighbors differ in their absent ranks.

    Raises:
        ValueError: there are no ranks, or an absent rank is not one of them.
    """

    num_replicas: int
    runs: tuple[SharedRows, ...] = ()

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"samples cannot be distributed among {self.num_replicas} ranks")
        if unknown := {rank for run in self.runs for rank in run.absent} - set(range(self.num_replicas)):
            raise ValueError(f"{sorted(unknown)} are not among the {self.num_replicas} ranks of a deal")

    @property
    def rows(self) -> int:
        """The number of rows that at least one rank has processed."""
        return sum(run.rows for run in self.runs)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have processed the same rows."""
        return not any(run.absent for run in self.runs)

    @property
    def num_places(self) -> int:
        """The number of processed places, padding included."""
        return sum(run.rows * (self.num_replicas - len(run.absent)) for run in self.runs)

    def record(self, rows: int, absent: Iterable[int] = ()) -> Self:
        """The deal with the next rows processed by all ranks but the absent ones."""
        run = SharedRows(rows, tuple(sorted(absent)))
        former = self.runs
        if former and former[-1].absent == run.absent:
            former, run = former[:-1], SharedRows(former[-1].rows + rows, run.absent)
        return type(self)(self.num_replicas, (*former, run))

    def list_left(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """The unprocessed samples of this deal, in their order.

        A sample with two places is processed when one of them is.
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
    """The processed samples of one epoch.

    deals: the distributions, each of the samples that the earlier ones have left unprocessed.
    """

    deals: tuple[Deal, ...] = ()

    @classmethod
    def skip(cls, count: int) -> Self:
        """A ledger in which the first `count` samples are processed."""
        if count > 0:
            return cls((Deal(1, (SharedRows(count),)),))
        return cls()

    def deal(self, num_replicas: int) -> Self:
        """The ledger with the unprocessed samples distributed again; a deal without processed rows is dropped.

        If the number of ranks is the same, and all have processed the same rows, the last deal continues. So a job that
        is started again pads in the same way.
        """
        used = self._list_used()
        continues = bool(used) and used[-1].num_replicas == num_replicas and used[-1].is_whole
        return type(self)(used if continues else (*used, Deal(num_replicas)))

    def record(self, rows: int, absent: Iterable[int] = ()) -> Self:
        """The ledger with the next rows of the last deal processed by all its ranks but the absent ones.

        Raises:
            ValueError: there is no deal, there are no rows, or an absent rank is not in the deal.
        """
        if not self.deals:
            raise ValueError("rows cannot be recorded before the first deal; call deal() first")
        return type(self)((*self.deals[:-1], self.deals[-1].record(rows, absent)))

    def list_dealt(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """The samples of the last deal, given all samples of the epoch in their order."""
        return type(self)(self.deals[:-1]).list_left(samples)

    def list_left(self, samples: Sequence[SampleT]) -> list[SampleT]:
        """The unprocessed samples, given all samples of the epoch in their order.

        Samples that an absent rank has missed come first, then those that no rank has reached.
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
        """The ledger of plain numbers; lists are accepted for tuples, as after JSON.

        Raises:
            ValueError, TypeError: the numbers are not a ledger.
        """
        return cls(
            tuple(
                Deal(num_replicas, tuple(SharedRows(rows, tuple(absent)) for rows, absent in runs))
                for num_replicas, runs in packed
            )
        )

    def _list_used(self) -> tuple[Deal, ...]:
        return tuple(deal for deal in self.deals if deal.runs)
