"""Which snapshot all ranks continue from, found by each rank from the same summaries. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from worker_runtime.snapshots.memory import Key, Record
from worker_runtime.snapshots.trained import are_different

_OTHER_MODELS = (
    "rank {} and rank {} train different parameters, and a Snapshot has those of one rank; write checkpoints instead"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What one rank has in its memory.

    names: of the objects and values that its program keeps.
    states: the records of its complete states.
    random: the records of its random states.
    saves: how often its program has called `save()`.
    """

    names: tuple[str, ...]
    states: tuple[Record, ...] = ()
    random: tuple[Record, ...] = ()
    saves: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What all ranks continue from.

    key: the save.
    source: the first rank that has its state.
    lost: the ranks of that save whose random states are lost; None where the job has another size.
    """

    key: Key
    source: int
    lost: tuple[int, ...] | None


def choose(summaries: Sequence[Summary]) -> Choice | None:
    """The newest save whose state a rank has; None where no rank has one.

    A save that all ranks had completed goes before a newer one that only some had: the random states of the others
    would not fit it. The former is the save before, or the one that the newest round has begun from.
    """
    states = [record for summary in summaries for record in summary.states]
    if not states:
        return None
    newest = max(states, key=lambda record: record.key)
    known = {record.key for record in states}
    candidates = {key for key in known if key.round == newest.key.round} | ({newest.origin} & known)
    size = len(summaries)
    ranks = {
        key: {record.rank for each in summaries for record in each.random if (record.key, record.size) == (key, size)}
        for key in candidates
    }
    key = max(candidates, key=lambda key: (len(ranks[key]), key))

    source = next(rank for rank, each in enumerate(summaries) if any(record.key == key for record in each.states))
    same_size = all(record.size == size for record in states if record.key == key)
    lost = tuple(sorted(set(range(size)) - ranks[key])) if same_size else None
    return Choice(key, source, lost)


def find_record(summaries: Sequence[Summary], choice: Choice) -> Record:
    """The record of the chosen state, as its source has it."""
    return next(record for record in summaries[choice.source].states if record.key == choice.key)


def describe_choice(choice: Choice) -> str:
    """What the user reads of a restore."""
    text = f"continuing from the snapshot of save {choice.key.number}, which rank {choice.source} has"
    if choice.lost is None:
        return f"{text}; random numbers begin anew, since the number of workers has changed"
    if choice.lost:
        ranks = ", ".join(map(str, choice.lost))
        return f"{text}; the random states of rank {ranks} are lost, whose random numbers begin anew"
    return text


def find_difference(summaries: Sequence[Summary], choice: Choice) -> str | None:
    """Why the ranks cannot continue from one state; None where they can."""
    names = {summary.names: rank for rank, summary in reversed([*enumerate(summaries)])}
    if len(names) > 1:
        (mine, one), (theirs, other), *_ = sorted(names.items(), key=lambda item: item[1])
        return f"rank {one} keeps {', '.join(mine)}, and rank {other} keeps {', '.join(theirs)}"
    layouts = {
        record.layout: rank
        for rank, summary in reversed([*enumerate(summaries)])
        for record in summary.states
        if record.key == choice.key
    }
    if len(layouts) > 1:
        one, other, *_ = sorted(layouts.values())
        return f"the states of rank {one} and rank {other} have other names or shapes; all ranks must have the same"
    return _find_other_model(summaries, choice)


def _find_other_model(summaries: Sequence[Summary], choice: Choice) -> str | None:
    """The ranks whose optimizers had different parameters, as stages of a pipeline have."""
    # A measure is of the first save after a restore, so that ranks which have gone on alone are compared as well.
    begins = {
        (each.key.round, each.origin) for summary in summaries for each in summary.states if each.key == choice.key
    }
    records = [each for summary in summaries for each in summary.random if (each.key.round, each.origin) in begins]
    measured = sorted((record for record in records if record.layout), key=lambda record: record.rank)
    for record in measured:
        if are_different(measured[0].layout, record.layout):
            return _OTHER_MODELS.format(measured[0].rank, record.rank)
    return None
