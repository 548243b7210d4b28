"""The elastic sampler: distributes the samples of a data set, and redistributes the rest when the job changes.

Each sample counts exactly once per epoch, padding aside, however often workers are lost or added. A batch counts as
processed only for the ranks that took part in its step. If a step is repeated without a lost worker, that worker's
batch is unprocessed, and so are all its later samples. Unprocessed samples are distributed again by the next `reset()`.
A state with such a sampler restarts the training function, and so resets the sampler, at the first commit or
`check_host_updates()` after a loss. Until then the distribution stays, although the job may have shrunk.

All ranks must distribute the samples in the same way, or their numbers of steps would differ. But each rank notices a
loss at another time, so the present members cannot decide. The members of the last completed step do: they are the same
on all ranks at the same place of the program.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sized
from typing import Any

from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.plans.samples import Ledger

_LEDGER, _TRAINS = "ledger", "trains"  # keys of the state dict that Horovod's sampler does not have
_LEFT = (
    "{} samples of epoch {} are not processed: they belonged to workers that were lost. "
    "To distribute them again, call state.commit() or state.check_host_updates() before sampler.set_epoch()."
)


class ElasticSampler:
    """Distributes the indices of a data set among the workers. Processed indices are not distributed again.

    Every worker gets equally many indices; some are used twice if necessary (padding). Put the sampler into the state
    of `elastic.run`, and call `record_batch` after each step. (The loader of `hvd.split_data` does both.) Without
    `record_batch` the epoch starts again after each change of the job. A loader may prefetch batches (`num_workers`):
    only recorded batches count.

    Where several optimizers step with each batch, the step of the last one decides. If a worker is lost between two of
    these steps, its batch counts as unprocessed. It is distributed again, and the earlier optimizers use it twice.

    Args:
        dataset: the data set; only its length is used.
        shuffle: use a random order, a new one in each epoch, the same on all ranks.
        seed: the seed of the random order.

    epoch: the epoch whose samples are distributed.
    rank, num_replicas: this rank's position in the last distribution, and its number of ranks. Both stay when the job
        shrinks, until the next `reset()`.
    remaining_indices: the indices of the last distribution, of all ranks together, in order.
    num_samples: this rank's number of them, padding included.
    total_size: all ranks' number of them, padding included.
    processed_num: the number of samples of the epoch that are processed, or used in a step that is not complete yet.
    is_in_pass: the present distribution is being iterated over.

    Raises:
        ValueError: Horovod has not been initialized.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 1
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0

        self._ledger = Ledger()
        self._dealt: list[int] = []  # the indices of the last distribution in rows, some of them processed
        self._begin: Callable[[], None] | None = None  # called when the next pass begins
        self._members: tuple[int, ...] = ()  # the original ranks of the last distribution
        self._first_row = 0  # the first unprocessed row of that distribution
        self._row = 0  # the number of rows recorded since
        self.is_in_pass = False
        self._waiting: list[tuple[int, tuple[int, ...]]] = []  # rows of no completed step yet, and the members then
        self._steps = 0  # the number of completed steps when the last batch was assigned to one
        self._is_stepping = False  # steps are completed between the batches of the last distribution
        self._trains = False  # they were between those of an earlier one: a batch counts with its step only

        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, with none of its samples processed. Call it on all ranks, at the end of the epoch before.

        At the beginning of an epoch, a function of `elastic.run` that begins again would repeat its samples.
        It warns of samples of the present epoch that belonged to lost ranks, and are never processed. To distribute
        them again, call `state.commit()` or `state.check_host_updates()` before.

        Args:
            epoch: the number of the epoch, which also seeds its order.
        """
        is_begun = self._row > 0 and epoch != self.epoch
        is_first = RUNTIME.engine.steps.original_rank == self._find_members()[0]
        if is_begun and is_first and (left := self._count_left()):
            warnings.warn(_LEFT.format(left, self.epoch), stacklevel=2)
        self._begin = None  # what was begun belongs to another pass
        self._go_to(epoch, Ledger())

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each worker has processed a batch. Call it after the step that used the batch.

        The batch counts as processed for the ranks that took part in the newest step of a `DistributedOptimizer` of the
        global process set. While gradients are accumulated, a batch counts as processed when the next step is
        complete; only before the first step of a job it counts at once, because no step tells that others will follow.
        If the program has no such optimizer, the batch counts for all present ranks.

        Args:
            batch_idx: accepted for Horovod's sake; not used.
            batch_size: the number of samples in one worker's batch. For the last, smaller batch you may give the full
                size.
        """
        del batch_idx
        engine = RUNTIME.engine
        rows = min(batch_size, self.num_samples - self._row)
        if rows < 1:
            return

        present = engine.steps.original_ranks
        if self._waiting and self._waiting[-1][1] == present:
            self._waiting[-1] = self._waiting[-1][0] + rows, present
        else:
            self._waiting.append((rows, present))

        self._note_steps(is_between=self._row > 0)  # else the step may belong to something before the first batch
        self._row += rows
        self.processed_num = self._count(self._write_all())

    def agree_on_epoch(self, epoch: int) -> int:
        """The latest epoch of all ranks: a new worker has gone through fewer. All ranks call it before a pass."""
        engine = RUNTIME.engine
        if self.shuffle and engine.is_elastic:
            return engine.find_greatest(epoch, "epoch")
        return epoch

    def end_pass(self) -> None:
        """Ask which ranks are left, where no steps tell it, as in an evaluation. All ranks call it after their pass.

        The whole part of a rank that was lost counts as unprocessed: what it computed from its samples is lost, too.
        """
        engine = RUNTIME.engine
        if self.may_differ:
            if engine.is_elastic:
                engine.agree_on_members()
            if self._waiting:
                self._settle(engine.steps.completed[0], engine.steps.members)

    def reset(self) -> None:
        """Distribute the unprocessed samples of the epoch among the present workers.

        They are the members of the last completed step, or of a later `end_pass()`. So all ranks that call this at the
        same place of the program get the same result. A worker that was lost since then still gets its part, until the
        next `reset()`.
        """
        ledger = self._write_known()
        engine = RUNTIME.engine
        self._steps, self._members = engine.steps.completed[0], self._find_members()
        self.num_replicas = len(self._members)
        if RUNTIME.is_late:
            self.rank = RUNTIME.assignment.rank
        else:
            self.rank = self._members.index(engine.steps.original_rank)

        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311 - an order, no secret

        self._ledger = ledger.deal(self.num_replicas)
        self._row, self._waiting, self._is_stepping = 0, [], False
        self.is_in_pass = False
        self._dealt = self._ledger.list_dealt(indices)
        self._first_row = self._ledger.deals[-1].rows
        self.remaining_indices = ledger.list_left(indices)
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.processed_num = self._count(self._ledger)

    @property
    def is_outdated(self) -> bool:
        """Whether lost ranks have unprocessed samples, so that `reset()` is due. The same on all ranks.

        It becomes True with the first step that is completed, or the first pass that ends, without the lost ranks.
        """
        return self._count_left() > 0

    @property
    def may_differ(self) -> bool:
        """Whether ranks may differ in which batches count as processed, since each notices a loss at another time.

        True where batches were recorded and no steps are completed between them. The same on all ranks.
        """
        return self._row > 0 and not self._is_stepping

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and which of its samples are processed, in plain numbers.

        A batch whose step is not complete yet does not count: its gradient is not in the model.
        """
        if self._waiting:
            self._note_steps(is_between=self._row < self.num_samples)  # else it may belong to something after the last
        ledger = self._write_known()
        counted = {"epoch": self.epoch, "processed_num": self._count(ledger)}
        return {**counted, _LEDGER: ledger.pack(), _TRAINS: self._trains}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where another sampler was, with this worker's present rank.

        Args:
            state_dict: the return value of `state_dict()`. In one of Horovod's, which has only a number, the first
                samples count as processed.

        Raises:
            KeyError, ValueError, TypeError: `state_dict` has another form.
        """
        packed = state_dict.get(_LEDGER)
        self._trains = state_dict.get(_TRAINS, False)
        self._go_to(
            state_dict["epoch"],
            Ledger.skip(state_dict["processed_num"]) if packed is None else Ledger.unpack(packed),
        )

    def continue_pass_with(self, begin: Callable[[], None]) -> None:
        """Register a function that is called when the next pass gives its first sample, if it is of this epoch."""
        self._begin = begin

    def __iter__(self) -> Iterator[int]:
        dealt, first = self._dealt, self._first_row * self.num_replicas
        places = range(first + self.rank, first + self.total_size, self.num_replicas)
        return self._go_through([dealt[place % len(dealt)] for place in places])

    def _go_through(self, indices: list[int]) -> Iterator[int]:
        """Give the indices. A loader asks for the first one after it has drawn its own random numbers."""
        self.is_in_pass = True
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
        yield from indices

    def __len__(self) -> int:
        return self.num_samples

    def _go_to(self, epoch: int, ledger: Ledger) -> None:
        """Start an epoch with this ledger, and distribute its samples."""
        self.epoch = epoch
        self._ledger = ledger
        self._waiting = []
        self.reset()

    def _find_members(self) -> tuple[int, ...]:
        """The original ranks to distribute samples to: the members that all ranks know, or a single rank.

        A worker that has not joined the others yet counts those with which it was started. So a schedule by the length
        of its loader is that of the others.
        """
        if RUNTIME.is_late:
            return tuple(range(RUNTIME.assignment.size))
        steps = RUNTIME.engine.steps
        if len(steps.original_ranks) == 1:
            return steps.original_ranks
        return steps.members

    def _count_left(self) -> int:
        """The number of unprocessed samples of the epoch after ranks were lost; 0 where none was lost."""
        if self._find_members() == self._members:
            return 0
        return len(self._write_known().list_left(range(len(self.dataset))))

    def _note_steps(self, *, is_between: bool) -> None:
        """If a step was completed since the last batch was settled, record the waiting ones as used in it.

        Args:
            is_between: the step was completed between batches of the present distribution.
        """
        steps, participants = RUNTIME.engine.steps.completed
        if steps != self._steps:
            self._is_stepping |= is_between
            self._trains |= self._is_stepping
            self._settle(steps, participants)

    def _settle(self, steps: int, participants: tuple[int, ...]) -> None:
        """Record the waiting batches as used in a step of these participants."""
        rows = sum(rows for rows, _ in self._waiting)
        self._ledger = self._ledger.record(rows, self._list_absent(participants))
        self._steps, self._waiting = steps, []

    def _write_known(self) -> Ledger:
        """The ledger of the processed samples; includes waiting batches where no steps are completed."""
        if self._trains:
            return self._ledger
        return self._write_all()

    def _write_all(self) -> Ledger:
        """The ledger that includes the waiting batches, as processed by the members at their time."""
        ledger = self._ledger
        for rows, present in self._waiting:
            ledger = ledger.record(rows, self._list_absent(present))
        return ledger

    def _list_absent(self, participants: tuple[int, ...]) -> list[int]:
        """The ranks of the present distribution that are not among the participants."""
        return [rank for rank, member in enumerate(self._members) if member not in participants]

    def _count(self, ledger: Ledger) -> int:
        """The number of processed samples of the epoch in a ledger that ends with the present distribution."""
        count = len(self.dataset)
        return min(count - len(self._dealt) + ledger.deals[-1].num_places, count)
