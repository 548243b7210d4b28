"""A sampler whose loader records the processed batches, so that the program need not; and the loader's passes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from worker_runtime.elastic.sampler import ElasticSampler

BatchT = TypeVar("BatchT")


class Epochs(Protocol):
    """A state that counts epochs, as `hvd.elastic.TorchState(epoch=0)` does."""

    epoch: int


class RecordedSampler(ElasticSampler):
    """An ElasticSampler whose loader calls `record_batch`, so that the program need not.

    The loader records a batch when the program asks for the next one, commits the state or calls
    `check_host_updates()`: then the batch's step is done. A batch that the program also records counts once.
    """

    _in_use = 0  # samples of the batch that the program has, and that is not recorded yet
    _is_begun = False  # a pass through the samples of the last reset()

    def hand_out(self, count: int) -> None:
        """Note that the program gets a batch of this many samples."""
        self._in_use = count

    def settle(self) -> None:
        """Record the batch that was in use."""
        if self._in_use:
            self.record_batch(0, self._in_use)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """See `ElasticSampler.record_batch`; no batch is in use afterwards."""
        self._in_use = 0
        super().record_batch(batch_idx, batch_size)

    def begin_pass(self, epoch: int | None) -> None:
        """Go to the epoch of the next pass, and distribute its samples among the present ranks.

        A second pass of an epoch begins it anew: the workers may be others than in the first.

        Args:
            epoch: the epoch; None for the next one, or for the present one if no pass of it has begun.
        """
        self.settle()
        if epoch is None:
            epoch = self.agree_on_epoch(self.epoch + self._is_begun)
        if epoch != self.epoch or self._is_begun:
            self.set_epoch(epoch)
        else:
            self.reset()
        self._is_begun = True

    def continue_pass(self) -> bool:
        """Distribute the samples that lost workers left of the epoch; return whether there were any."""
        self.end_pass()
        if not self.is_outdated:
            return False
        self.reset()
        self._is_begun = True
        return True

    def set_epoch(self, epoch: int) -> None:
        """See `ElasticSampler.set_epoch`."""
        self.settle()
        super().set_epoch(epoch)

    def reset(self) -> None:
        """Distribute the remaining samples. A batch in use that was not settled before is dropped."""
        self._in_use, self._is_begun = 0, False
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """See `ElasticSampler.state_dict`; the batch in use counts as processed."""
        self.settle()
        return super().state_dict()

    @property
    def is_outdated(self) -> bool:
        """See `ElasticSampler.is_outdated`, which `check_host_updates()` reads."""
        self.settle()
        return super().is_outdated


def go_through(
    sampler: RecordedSampler,
    list_batches: Callable[[], Iterable[BatchT]],
    rows: int,
    find_epoch: Callable[[], int] | None = None,
) -> Iterator[BatchT]:
    """Give the remaining batches of the epoch, then those that lost workers left; record each of them.

    At the end the ranks agree on who is left: see `ElasticSampler.end_pass`.

    Args:
        sampler: the loader's sampler.
        list_batches: begins a pass through the samples that are distributed.
        rows: the number of samples in a batch.
        find_epoch: returns the epoch of this pass; None to count passes.
    """
    sampler.begin_pass(None if find_epoch is None else find_epoch())
    is_left = True
    while is_left:
        for batch in list_batches():
            sampler.hand_out(rows)
            yield batch
            sampler.settle()
        is_left = sampler.continue_pass()
