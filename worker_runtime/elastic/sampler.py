"""Which samples of a data set are this worker's, and which are left after a change of the job's size.

Each sample counts exactly once per epoch, padding aside, however often workers are lost or come. To that end a batch
counts for those ranks alone that took part in the step in which it was used: a lost worker's batch of a step that was
repeated without it is left, and so is all that it still had before it. What is left is dealt out anew at the next
`reset()`, which is when the training function begins again: a state with such a sampler has it begin again at the first
commit or `check_host_updates()` after a loss. Until then the deal stays as it is, although the job may have shrunk.

All ranks must deal alike, or they would not make equally many steps. Yet each learns of a loss at another moment, so
that a deal must not depend on who is there now: it is made among those who have committed the last step together, which
is the same on all ranks at the same place of the program.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sized
from typing import Any

from worker_runtime.coordination.ordering.ledger import Ledger
from worker_runtime.membership.runtime import RUNTIME

_LEDGER = "ledger"  # a key of the state that Horovod's does not have
_LEFT = (
    "{} samples of epoch {} are not processed: they had been dealt out to workers that were lost. "
    "Call state.commit() or state.check_host_updates() before sampler.set_epoch(), and they are dealt out anew."
)


class ElasticSampler:
    """Deals the indices of a data set out to the workers; those that were processed are not dealt out again.

    Every worker gets equally many: where they do not suffice, some are dealt out twice (padding). It belongs into the
    state of `elastic.run`, and must be told of each batch, by `record_batch` and after the step: without that nothing
    is known to be processed, and after a change of the job the whole epoch begins again. It does not matter that a
    loader fetches batches ahead (`num_workers`), since only those that are recorded count.

    Where several optimizers step with a batch, the last one decides. A worker that is lost between two of their steps
    has its share in those before, and none in those after: its batch counts as not processed and is dealt out again, so
    that the optimizers before use it twice and the last one once. So it is however many are left.

    Args:
        dataset: what is sampled; only its length counts.
        shuffle: whether the order is random, another one in each epoch, the same on all ranks.
        seed: of that order.

    epoch: whose samples are dealt out.
    rank, num_replicas: among how many ranks they were dealt out last, and which of them this one is. Both stay when
        the job shrinks, until the next deal.
    remaining_indices: what was dealt out last, to all ranks together, in order.
    num_samples: how many this rank got of it, padding included.
    total_size: how many all ranks got of it, padding included.
    processed_num: how many of the epoch are processed, those included that wait for their step's end.
    is_in_pass: somebody goes through what was dealt out.

    Raises:
        ValueError: Horovod has not been initialized.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:  # noqa: FBT001, FBT002 - Horovod's signature
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
        self._dealt: list[int] = []  # what the last deal has laid out, of which some may be processed
        self._begin: Callable[[], None] | None = None  # what is to be called when the next pass begins
        self._members: tuple[int, ...] = ()  # among whom was dealt last, as the engine's original ranks name them
        self._first_row = 0  # of that deal, the first that was left
        self._row = 0  # how many rows were recorded since
        self.is_in_pass = False
        self._waiting: list[tuple[int, tuple[int, ...]]] = []  # of them, those of no commit yet, and who was there
        self._steps = 0  # how many steps had been committed when the last batch was given to one
        self._is_stepping = False  # one was committed between two batches: they are those of a training
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed. To be called at its end or start, on all ranks.

        Samples of the present epoch that were dealt out to lost ranks are never processed then, which is warned of. To
        have them dealt out anew, look for changes of the job (`commit()`, `check_host_updates()`) before.
        """
        is_begun = self._row > 0 and epoch != self.epoch
        is_first = RUNTIME.engine.steps.original_rank == self._find_members()[0]
        if is_begun and is_first and (left := self._count_left()):
            warnings.warn(_LEFT.format(left, self.epoch), stacklevel=2)
        self._begin = None  # it was of another pass
        self._go_to(epoch, Ledger())

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each worker has processed a batch; to be called after the step in which it was used, the last one.

        It counts for the ranks that have committed that step: those of the newest step of a `DistributedOptimizer` of
        all ranks since the batch before. Where there was none, as while gradients are accumulated, it waits for the
        next one, and counts for those. Where nothing ever commits, it counts for those who are there now. The steps of
        the only worker that is left count as well.

        Args:
            batch_idx: Horovod's argument; nothing depends on it.
            batch_size: samples of one worker's batch. The last, smaller one may be told as a full one.
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
        steps, participants = engine.steps.committed
        if steps != self._steps:
            self._is_stepping |= self._row > 0  # else the step may have been of anything that came before
            self._settle(steps, participants)
        self._row += rows
        self.processed_num = self._count(self._write_all())

    def reset(self) -> None:
        """Deal out what is left of the epoch among the workers that there are now.

        They are told by the newest step that was committed, so that all ranks that call this at the same place of their
        program deal alike; a worker that was lost since then still gets its part, which waits for the next deal.
        """
        ledger = self._write_known()
        engine = RUNTIME.engine
        self._steps, self._members = engine.steps.committed[0], self._find_members()
        self.num_replicas = len(self._members)
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
        """Whether samples were dealt out to ranks that were lost: another deal is due. The same on all ranks.

        It becomes so with the first step that is committed without them; what they had up to then is processed.
        """
        return self._count_left() > 0

    @property
    def may_differ(self) -> bool:
        """Whether ranks may hold different batches for processed, as each learns of a loss at another moment.

        So it is where batches were recorded of which none was committed with a step. The same on all ranks.
        """
        return self._row > 0 and not self._is_stepping

    def state_dict(self) -> dict[str, Any]:
        """The epoch, how many of its samples are processed, and which: in plain numbers, as many as there were deals.

        A batch that waits for its step to be committed is not among them: its gradient is not in the model yet.
        """
        steps, participants = RUNTIME.engine.steps.committed
        if self._waiting and steps != self._steps:
            self._settle(steps, participants)
        ledger = self._write_known()
        return {"epoch": self.epoch, "processed_num": self._count(ledger), _LEDGER: ledger.pack()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another sampler was, as the rank that this worker has now.

        Args:
            state_dict: of `state_dict()`. One of Horovod's, which does not say which samples were processed, means the
                first ones.

        Raises:
            KeyError, ValueError, TypeError: it is none.
        """
        packed = state_dict.get(_LEDGER)
        self._go_to(
            state_dict["epoch"],
            Ledger.skip(state_dict["processed_num"]) if packed is None else Ledger.unpack(packed),
        )

    def continue_pass_with(self, begin: Callable[[], None]) -> None:
        """Have something called when the next pass has begun and gives its first sample, if it is of this epoch."""
        self._begin = begin

    def __iter__(self) -> Iterator[int]:
        dealt, first = self._dealt, self._first_row * self.num_replicas
        places = range(first + self.rank, first + self.total_size, self.num_replicas)
        return self._go_through([dealt[place % len(dealt)] for place in places])

    def _go_through(self, indices: list[int]) -> Iterator[int]:
        """Give them one by one; a loader comes for the first when it has drawn what random numbers it needs itself."""
        self.is_in_pass = True
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
        yield from indices

    def __len__(self) -> int:
        return self.num_samples

    def _go_to(self, epoch: int, ledger: Ledger) -> None:
        """Forget what is known of the present epoch."""
        self.epoch = epoch
        self._ledger = ledger
        self._waiting = []
        self.reset()

    def _find_members(self) -> tuple[int, ...]:
        """Among whom to deal: those who have committed the last step; who is alone need not wait for one."""
        original_ranks, (_, members) = RUNTIME.engine.steps.original_ranks, RUNTIME.engine.steps.committed
        return original_ranks if len(original_ranks) == 1 else members

    def _count_left(self) -> int:
        """How many samples of the epoch wait for another deal, since ranks were lost; 0 where none was."""
        if self._find_members() == self._members:
            return 0
        return len(self._write_known().list_left(range(len(self.dataset))))

    def _settle(self, steps: int, participants: tuple[int, ...]) -> None:
        """What waits was used in a step, in which these took part."""
        rows = sum(rows for rows, _ in self._waiting)
        self._ledger = self._ledger.record(rows, self._list_absent(participants))
        self._steps, self._waiting = steps, []

    def _write_known(self) -> Ledger:
        """The ledger of what is processed, as far as can be known; with all that waits where no step is waited for."""
        return self._ledger if self._is_stepping else self._write_all()

    def _write_all(self) -> Ledger:
        """The ledger with what waits, as if those who were there had taken part."""
        ledger = self._ledger
        for rows, present in self._waiting:
            ledger = ledger.record(rows, self._list_absent(present))
        return ledger

    def _list_absent(self, participants: tuple[int, ...]) -> list[int]:
        """Which ranks of the deal are not among them."""
        return [rank for rank, member in enumerate(self._members) if member not in participants]

    def _count(self, ledger: Ledger) -> int:
        """How many samples of the epoch are processed, by a ledger that ends with the present deal."""
        count = len(self.dataset)
        return min(count - len(self._dealt) + ledger.deals[-1].num_places, count)
