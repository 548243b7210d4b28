"""Accounts of workers as a test needs them, and the history of a job that has sent them."""

import random
from collections.abc import Mapping, Sequence

from hvdrun.accounts.history import History
from rendezvous.core import membership
from rendezvous.core.messages import Launch, Ticked
from rendezvous.core.model import Assignment, Policy, Round, Slot, Worker
from rendezvous.wire.accounts import Account, AccountsReported, WaitedFor

STEPS = 500
_STEP_SECONDS = 0.1
_BURST_STEPS = 25


def build_history(*accounts: Account) -> History:
    """A history with these workers, by rank, which were started together."""
    history, size = History(), len(accounts)
    launches = tuple(
        Launch(account.worker, Assignment(rank, size, rank, size, 0, 1), "placed", round=Round(0, 0, 1))
        for rank, account in enumerate(accounts)
    )
    history.note(Ticked(0.0), membership.begin(Policy.static(max(1, size))), launches, 0.0)
    history.note_accounts(AccountsReported(accounts))
    return history


def make_worker(rank: int, host: str = "server1") -> Worker:
    """The first worker in the slot of this number."""
    return Worker(Slot(host, rank), 1)


def train(
    size: int,
    slow: Mapping[int, float],
    jitter: float,
    seed: int,
    steps: int = STEPS,
    every: int = 1,
    bursts: float = 0.0,
) -> list[Account]:
    """The accounts of a training in which all ranks wait for the last one in each step.

    Args:
        size: how many ranks there are.
        slow: by rank, by how many seconds its steps take longer.
        jitter: the mean of what each step of each rank takes longer by chance.
        seed: of chance.
        steps: how many there are.
        every: so many steps there is one in which slow ranks are slow.
        bursts: in this share of the time one rank or another, by chance, takes half a step longer.
    """
    source = random.Random(seed)  # noqa: S311 - jitter, no secret
    burst: Mapping[int, float] = {}
    computed, waited = [0.0] * size, [[[0.0, 0] for _ in range(size)] for _ in range(size)]
    for step in range(steps):
        late = {} if step % every else slow
        if step % _BURST_STEPS == 0:
            burst = {source.randrange(size): _STEP_SECONDS / 2} if source.random() < bursts else {}
        late = {**burst, **late}
        took = [_STEP_SECONDS + late.get(rank, 0.0) + source.expovariate(1 / jitter) for rank in range(size)]
        last = max(range(size), key=lambda rank: took[rank])
        for rank in range(size):
            computed[rank] += took[rank]
            if rank != last:
                waited[rank][last][0] += took[last] - took[rank]
                waited[rank][last][1] += 1
    return [make_account(rank, computed[rank], waited[rank], steps) for rank in range(size)]


def make_account(rank: int, computed: float, waited: Sequence[Sequence[float]], steps: int) -> Account:
    """One of them; a second of start, and another one that nobody knows of."""
    waiting = sum(seconds for seconds, _ in waited)
    waited_for = (WaitedFor(other, each[0], int(each[1])) for other, each in enumerate(waited) if each[1])
    return Account(
        make_worker(rank),
        is_measured=True,
        has_ended=True,
        total_seconds=computed + waiting + 2.0,
        start_seconds=1.0,
        compute_seconds=computed,
        waiting_seconds=waiting,
        steps=steps,
        waited_for=tuple(waited_for),
    )
