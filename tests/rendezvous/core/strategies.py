"""What may happen next, and what the survivors of a generation may truthfully report; Hypothesis or chance chooses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from rendezvous.core.lifecycle import WorkerState
from rendezvous.core.messages import Event, Joined, Reported, SequencerOpened, Ticked
from rendezvous.core.model import Endpoint, Host, Worker
from rendezvous.core.reports import CompletedOperation, JoinReason, PendingOperation, Report
from rendezvous.core.state import State

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]


def choose_join(state: State, choose: "Choose[Worker]") -> Event:
    """An expected worker asks for the next generation; with none left, any worker does."""
    expected = [r.worker for r in state.list_workers(WorkerState.INTENDED, WorkerState.MEMBER)]
    return Joined(choose(expected or [r.worker for r in state.workers.values()]), state.number)


def choose_report(state: State, choose: "Choose[Host]") -> Event:
    """An agent reports the workers that should run there."""
    if not state.hosts:
        return Ticked(state.now)
    host = choose([Host(name, len(slots)) for name, slots in state.hosts.items()]).name
    return Reported(host, tuple(r.worker for r in state.on(host) if r.state is not WorkerState.ENDED))


def choose_sequencer(state: State) -> Event:
    """The host of rank 0, or of the one that will be, opens the sequencer of the newest generation."""
    first = next(iter(state.workers.values())).worker
    return SequencerOpened(first.slot.host, state.number, Endpoint("10.0.0.1", 4711))


@dataclass(frozen=True)
class Entry:
    """One operation of a generation, in its order."""

    ranks: tuple[int, ...]
    name: str
    number: int = 0


@dataclass(frozen=True)
class Loss:
    """A generation that was interrupted: its size, and what its survivors report."""

    size: int
    reports: dict[int, Report]


@st.composite
def losses(draw: st.DrawFn, *, only_repeatable: bool = False, has_state: bool | None = None) -> Loss:
    """A loss, at any moment, of any members but one.

    An operation is released when all its members have asked for it, and each asks for the next one when it has done the
    last. So of what was released only the last one of each rank may not be done there.

    only_repeatable: there are only barriers and commit rounds of all ranks.
    has_state: whether all survivors have one; None for either.
    """
    size = draw(st.integers(2, 5))
    entries = draw(orders(size, only_repeatable=only_repeatable))
    released = draw(st.integers(0, len(entries)))
    gone = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    states = st.booleans() if has_state is None else st.just(has_state)
    reports = {
        rank: draw(accounts(entries, released, rank, states, only_repeatable=only_repeatable))
        for rank in range(size)
        if rank not in gone
    }
    return Loss(size, reports)


@st.composite
def orders(draw: st.DrawFn, size: int, *, only_repeatable: bool) -> list[Entry]:
    """The order of a generation. Users do not name barriers: each has a name of its own."""
    everybody = tuple(range(size))
    rounds: dict[tuple[int, ...], int] = {}
    entries: list[Entry] = []
    for _ in range(draw(st.integers(1, 8))):
        some = st.sets(st.integers(0, size - 1), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
        ranks = everybody if only_repeatable else draw(st.just(everybody) | some)
        barrier = f"barrier.{len(entries)}"
        name = draw(st.sampled_from(["commit.1", barrier] if only_repeatable else ["commit.1", barrier, "x", "y"]))
        if name == "commit.1":
            rounds[ranks] = rounds.get(ranks, 0) + 1
        entries.append(Entry(ranks, name, rounds[ranks] if name == "commit.1" else 0))
    return entries


@st.composite
def accounts(
    draw: st.DrawFn,
    entries: list[Entry],
    released: int,
    rank: int,
    states: st.SearchStrategy[bool],
    *,
    only_repeatable: bool,
) -> Report:
    """What one rank reports."""
    own = [(index, entry) for index, entry in enumerate(entries) if rank in entry.ranks]
    before = [(index, entry) for index, entry in own if index < released]
    after = [(index, entry) for index, entry in own if index >= released]
    is_last_done = draw(st.booleans())
    done = before if is_last_done else before[:-1]
    next_ = (after[:1] if draw(st.booleans()) else []) if is_last_done else before[-1:]
    seen = done[-1][0] if done else -1
    pending = []
    for index, entry in next_:
        is_heard = index < released and draw(st.booleans())
        seen = index if is_heard else seen
        obstacle = "" if only_repeatable or entry.number else draw(st.sampled_from(["", "", "", "it was changed"]))
        root = None if only_repeatable or entry.name != "y" else entry.ranks[0]
        known = index if is_heard else None
        pending.append(PendingOperation(entry.ranks, entry.name, entry.name, entry.number, known, root, obstacle))
    floor = draw(st.sampled_from([0, 0, 0, *(index for index, _ in done)])) if not only_repeatable else 0
    completed = [CompletedOperation(e.ranks, e.name, index, e.number) for index, e in done if index >= floor]
    return Report(
        JoinReason.CONTINUE,
        has_state=draw(states),
        pending=tuple(pending),
        completed=tuple(completed),
        seen=seen,
        floor=floor,
    )
