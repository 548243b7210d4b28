"""Which samples of a data set are this worker's, and which are left after a change of the job's size."""

import random
from collections.abc import Iterator, Sized
from typing import Any

from worker_runtime.runtime import RUNTIME


class ElasticSampler:
    """Deals the indices of a data set out to the workers; those that were processed are not dealt out again.

    Every worker gets equally many: where they do not suffice, some are dealt out twice. It is a part of the state of
    `elastic.run`, and must be told of each batch.

    Args:
        dataset: what is sampled; only its length counts.
        shuffle: whether the order is random, another one in each epoch, the same on all ranks.
        seed: of that order.

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
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed. To be called at its end or start, on all ranks."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each worker has processed a batch.

        Args:
            batch_idx: Horovod's argument; nothing depends on it.
            batch_size: samples of one worker's batch. The last, smaller one may be told as a full one.
        """
        del batch_idx
        self.processed_num = min(self.processed_num + batch_size * self.num_replicas, len(self.dataset))

    def reset(self) -> None:
        """Deal out what is left of the epoch among the workers that there are now."""
        self.num_replicas = RUNTIME.assignment.size
        self.rank = RUNTIME.assignment.rank
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311 - an order, no secret
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how much of it is processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another sampler was, as the rank that this worker has now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        return iter([left[place % len(left)] for place in range(self.rank, self.total_size, self.num_replicas)])

    def __len__(self) -> int:
        return self.num_samples
