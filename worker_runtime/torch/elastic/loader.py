"""The sampler of `elastic` as a data loader of torch takes it, and loaders that tell it which batches are processed."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Sampler

from worker_runtime.elastic import sampler

LoaderT = TypeVar("LoaderT", bound=DataLoader[Any])


class ElasticSampler(sampler.ElasticSampler, Sampler[int]):
    """Deals the indices of a data set out to the workers; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: what is sampled; only its length counts.
        shuffle: whether the order is random, another one in each epoch, the same on all ranks.
        seed: of that order.
    """


class RecordedSampler(ElasticSampler):
    """An ElasticSampler whose loader records the batches, so that the program need not.

    A batch is in use from when the loader hands it out until the program asks for the next one, commits the state or
    looks for changes of the job: then it has made its step. If the program records it all the same, it counts once.
    """

    _in_use = 0  # samples that are handed out and not recorded
    _is_begun = False  # a pass through the present deal

    def hand_out(self, count: int) -> None:
        """The program gets a batch of so many samples."""
        self._in_use = count

    def settle(self) -> None:
        """Record the batch that was in use."""
        if self._in_use:
            self.record_batch(0, self._in_use)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """As `ElasticSampler.record_batch`; no batch is in use afterwards."""
        self._in_use = 0
        super().record_batch(batch_idx, batch_size)

    def begin_pass(self, epoch: int | None) -> None:
        """Go to the epoch of the next pass, of which the first deals out among the workers that there are by then.

        Args:
            epoch: which one; None for the one after the present one, unless no pass through that has begun.
        """
        self.settle()
        if epoch is None:
            epoch = self.epoch + self._is_begun
        if epoch != self.epoch:
            self.set_epoch(epoch)
        elif not self._is_begun:
            self.reset()
        self._is_begun = True

    def continue_pass(self) -> bool:
        """Deal out what lost workers have left of the epoch; whether there was any."""
        if not self.is_outdated:
            return False
        self.reset()
        self._is_begun = True
        return True

    def set_epoch(self, epoch: int) -> None:
        """As `ElasticSampler.set_epoch`."""
        self.settle()
        super().set_epoch(epoch)

    def reset(self) -> None:
        """Deal out what is left; the batch in use is of another time, unless it was settled before."""
        self._in_use, self._is_begun = 0, False
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """What is processed, with the batch in use."""
        self.settle()
        return super().state_dict()

    @property
    def is_outdated(self) -> bool:
        """As `ElasticSampler.is_outdated`, which a state asks for when it looks for changes of the job."""
        self.settle()
        return super().is_outdated


class _RecordedLoader(DataLoader[Any]):
    """What is put in front of a loader's class."""

    sampler: RecordedSampler
    _rows: int
    _find_epoch: Callable[[], int] | None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares a class of its own
        """Go through what is left of the epoch, and then through what lost workers have left of it."""
        self.sampler.begin_pass(None if self._find_epoch is None else self._find_epoch())
        is_left = True
        while is_left:
            for batch in super().__iter__():
                self.sampler.hand_out(self._rows)
                yield batch
                self.sampler.settle()
            is_left = self.sampler.continue_pass()


def make_recorded(loader: LoaderT, batch_size: int, find_epoch: Callable[[], int] | None) -> LoaderT:
    """Let a loader with a RecordedSampler record its batches; it remains an instance of its class.

    Args:
        loader: is changed.
        batch_size: how many samples one of its batches is.
        find_epoch: tells which epoch a pass is; None to count passes.
    """
    cls = type(loader)
    vars(loader).update(_rows=batch_size, _find_epoch=find_epoch)
    loader.__class__ = type(
        cls.__name__, (_RecordedLoader, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__}
    )
    return loader
