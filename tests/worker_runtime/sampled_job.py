"""A simulated job whose workers each have a sampler, and what they have really processed."""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from worker_runtime.elastic.sampler import ElasticSampler


@dataclass
class Communicator:
    """What a sampler sees of a worker's engine."""

    original_rank: int
    original_ranks: tuple[int, ...]
    completed: tuple[int, tuple[int, ...]]

    is_elastic: bool = False
    agreed: tuple[int, ...] | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """Of the last step, or of a later agreement."""
        return self.completed[1] if self.agreed is None else self.agreed

    def agree_on_members(self) -> None:
        """All that are there have come to the same place."""
        self.agreed = self.original_ranks

    @property
    def steps(self) -> "Communicator":
        """As the engine's."""
        return self

    @classmethod
    def take(cls, rank: int, size: int) -> "Communicator":
        """Of a worker that has just entered a job."""
        return cls(rank, tuple(range(size)), (0, tuple(range(size))))

    def complete_step(self, *lost: int) -> None:
        """A step is completed, by those who are there but for the lost ones."""
        self.original_ranks = tuple(member for member in self.original_ranks if member not in lost)
        self.completed, self.agreed = (self.completed[0] + 1, self.original_ranks), None


@dataclass
class Player:
    """A worker of a simulated job."""

    communicator: Communicator
    sampler: ElasticSampler
    rows: int = 0  # of the present deal that it has used
    saved: dict[str, object] = field(default_factory=dict)


class Job:
    """Workers that each have a sampler, and what they have really processed in completed steps."""

    def __init__(self, chance: random.Random, runtime: SimpleNamespace) -> None:
        self.chance = chance
        self.runtime = runtime
        self.count = chance.choice([0, 1, 3, 10, 60])
        self.batch = chance.randint(1, 6)
        self.passes = chance.choice([1, 1, 2, 3])
        self.optimizers = chance.choice([1, 2, 3])  # that step one after the other
        self.is_calm = False
        self.counts = Counter[str]()
        self.seen: set[int] = set()  # in completed steps of this epoch, padding included
        self.own: set[int] = set()  # without it
        self.saved: tuple[set[int], set[int]] = set(), set()
        self.players: list[Player] = []
        self.enter(chance.randint(1, 5))

    def act(self, player: Player) -> ElasticSampler:
        """Be this worker."""
        self.runtime.engine = player.communicator
        return player.sampler

    def enter(self, newcomers: int, *, is_synced: bool = True) -> None:
        """All begin again, with others; some may be lost right away, which not all hear of immediately."""
        size = len(self.players) + newcomers
        for rank in range(size):
            communicator = Communicator.take(rank, size)
            if rank < len(self.players):
                player = self.players[rank]
                player.communicator, player.rows = communicator, 0
                self.act(player).reset()
            else:
                self.runtime.engine = communicator
                self.players.append(Player(communicator, ElasticSampler(range(self.count), seed=1)))
        lost = self.lose(0.1, spared=1)  # the worker that holds the state
        if is_synced:
            state = self.act(self.players[0]).state_dict()
            for player in self.players:
                if self.chance.random() < 0.5:
                    self.report_loss(player, lost)
                self.act(player).load_state_dict(state)
                self.report_loss(player, lost)
            self.save()
        for player in self.players:
            self.report_loss(player, lost)
        self.counts["joined"] += newcomers > 0
        self.check()

    def check(self) -> None:
        """All deal alike what was not processed."""
        first = self.players[0].sampler
        for player in self.players:
            sampler = player.sampler
            assert sampler.remaining_indices == first.remaining_indices
            assert (sampler.num_replicas, len(sampler)) == (first.num_replicas, len(first))
        assert sorted(first.remaining_indices) == [sample for sample in range(self.count) if sample not in self.seen]
        assert len({player.sampler.rank for player in self.players}) == len(self.players)

    def step(self) -> bool:
        """One step of all, of some passes, by each optimizer; False where no data is left."""
        rows = len(self.players[0].sampler)
        taken = []
        while len(taken) < self.passes and (left := rows - self.players[0].rows - sum(taken)) > 0:
            taken.append(min(self.batch, left))
        if not taken:
            return False
        for _ in taken[:-1]:
            for player in self.players:
                self.act(player).record_batch(0, self.batch)
        for number in range(self.optimizers):
            lost = self.lose(0.3 if number else 0.15)
            self.counts["lost between" if number else "lost before"] += len(lost)
            self.counts["left alone between"] += number > 0 and bool(lost) and len(self.players) == 1
            for player in self.players:
                self.report_loss(player, lost)
                player.communicator.complete_step()
        for player in self.players:
            self.use(player, sum(taken))
        self.counts["alone"] += len(self.players) == 1
        lost = self.lose(0.08)
        self.counts["lost after"] += len(lost)
        for player in self.players:
            is_reported = self.chance.random() < 0.5
            if is_reported:
                self.report_loss(player, lost)
            self.act(player).record_batch(0, self.batch)
            self.report_loss(player, lost)
        return True

    def use(self, player: Player, rows: int) -> None:
        """The worker's next samples are in the model; only padding may be there already."""
        sampler = player.sampler
        mine = list(sampler)
        for row in range(player.rows, player.rows + rows):
            is_padding = row * sampler.num_replicas + sampler.rank >= len(sampler.remaining_indices)
            self.counts["padding"] += is_padding
            if not is_padding:
                assert mine[row] not in self.own
                self.own.add(mine[row])
            self.seen.add(mine[row])
        player.rows += rows

    def lose(self, probability: float, spared: int = 0) -> list[int]:
        """Some die, but one, and not the first ones; their original ranks."""
        lost = []
        while not self.is_calm and len(self.players) > 1 and self.chance.random() < probability:
            lost.append(self.players.pop(self.chance.randrange(spared, len(self.players))).communicator.original_rank)
        return lost

    def report_loss(self, player: Player, lost: list[int]) -> None:
        """The worker's engine has continued without them."""
        communicator = player.communicator
        communicator.original_ranks = tuple(member for member in communicator.original_ranks if member not in lost)

    def look(self) -> bool:
        """All look for changes of the job: whether what the lost had was dealt out anew."""
        due = {self.act(player).is_outdated for player in self.players}
        assert len(due) == 1
        if due == {False}:
            return False
        for player in self.players:
            self.act(player).reset()
            player.rows = 0
        self.counts["looked"] += 1
        self.check()
        assert not self.act(self.players[0]).is_outdated
        return True

    def save(self) -> None:
        """All commit their state."""
        self.saved = self.seen.copy(), self.own.copy()
        for player in self.players:
            player.saved = self.act(player).state_dict()
        assert all(player.saved == self.players[0].saved for player in self.players)

    def restore(self) -> None:
        """All return to what was saved."""
        self.seen, self.own = (some.copy() for some in self.saved)
        for player in self.players:
            self.act(player).load_state_dict(player.saved)


def play_job(job: Job, epochs: int) -> None:
    """Whole epochs, the last steps of each without a further loss."""
    for epoch in range(epochs):
        job.is_calm = False
        job.seen, job.own = set(), set()
        for player in job.players:
            job.act(player).set_epoch(epoch)
            player.rows = 0
        job.check()
        job.save()
        for _ in range(12):
            play_turn(job)
        job.is_calm = True
        while True:
            while job.step():
                pass
            if not job.look():
                break
        assert job.seen == set(range(job.count))
        assert job.players[0].sampler.processed_num == job.count


def play_turn(job: Job) -> None:
    """A step, or what may come between two."""
    event = job.chance.random()
    if event < 0.6:
        job.step()
    elif event < 0.65:
        job.save()
    elif event < 0.7:
        job.look()
    elif event < 0.8:
        job.enter(job.chance.randint(0, 2))
    elif event < 0.9:
        differ = {player.sampler.may_differ for player in job.players}
        assert len(differ) == 1
        job.enter(0, is_synced=differ == {True})
        job.counts["unsynced"] += differ == {False}
    else:
        job.restore()
        job.enter(job.chance.randint(0, 2))
        job.counts["restored"] += 1
