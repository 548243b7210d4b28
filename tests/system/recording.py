"""What the workers of a recovery test have written down, and what of it counts in the end."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

Samples = Sequence[Sequence[int]]  # of each pass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the training, as it was made for good.

    epoch: the epoch to which its samples belong.
    members: of each optimizer, who took part, ascending.
    samples: of all who may have taken part, by member.
    digest: the digest of all parameters after it.
    """

    number: int
    epoch: int
    members: tuple[tuple[int, ...], ...]
    samples: Mapping[int, Samples]
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A stretch of the training in which the function runs once, and none is taken in: the members keep their names.

    first: its first step.
    size: how many workers it began with.
    """

    name: str
    first: int
    size: int


class Recording:
    """The notes of all workers of a job that has ended.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.notes = read_notes(folder)

    def list_pids(self, what: str) -> list[int]:
        """The processes that have noted this, in the order of the times."""
        return [note["pid"] for note in self.notes if note["what"] == what]

    def list_entries(self) -> list[Entry]:
        """In the order of the times; all members of an entry begin with the same step."""
        found: dict[str, set[tuple[int, int]]] = {}
        for note in self.notes:
            if note["what"] == "enter":
                found.setdefault(note["entry"], set()).add((note["step"], note["size"]))
        entries = []
        for name, numbers in found.items():
            steps = {step for step, _ in numbers}
            assert len(steps) == 1, f"an entry has begun with the steps {steps}"
            entries.append(Entry(name, steps.pop(), max(size for _, size in numbers)))
        return entries

    def list_steps(self) -> list[Step]:
        """The steps that count: an entry repeats whatever comes after its first step. No step is missing."""
        batches = [note for note in self.notes if note["what"] == "batch"]
        steps: dict[int, Step] = {}
        for entry in self.list_entries():
            steps = {number: step for number, step in steps.items() if number < entry.first}
            noted = [note for note in self.notes if note["what"] == "step" and note["entry"] == entry.name]
            for number, group in groupby(sorted(noted, key=lambda note: note["step"]), key=lambda note: note["step"]):
                own = [note for note in batches if (note["entry"], note["step"]) == (entry.name, number)]
                steps[number] = _make_step(number, list(group), own)
        numbers = sorted(steps)
        assert numbers == list(range(len(numbers))), f"steps are missing: {numbers}"
        return [steps[number] for number in numbers]

    def check_replicas(self) -> None:
        """All that came to the end have the same parameters, to the last bit; those of the last step."""
        digests = {note["digest"] for note in self.notes if note["what"] == "done"}
        assert digests == {self.list_steps()[-1].digest}

    def find_parameters(self) -> Path:
        """The file of the parameters with which the training has ended."""
        path = next(note["path"] for note in self.notes if note["what"] == "done")
        return Path(path).with_suffix(".parameters")

    def check_samples(self, count: int) -> None:
        """In every epoch each sample was used, and once; but for padding, of which a deal has less than a row.

        That holds for the last optimizer of a step, by which the sampler knows what is left. Where a rank was lost
        between two of them, the first ones have used some twice.
        """
        steps, entries = self.list_steps(), self.list_entries()
        for epoch in {step.epoch for step in steps}:
            own = [step for step in steps if step.epoch == epoch]
            used = Counter(sample for step in own for sample in _list_samples(step, -1))
            lacking = set(range(count)).difference(used)
            assert not lacking, f"epoch {epoch} lacks {sorted(lacking)}"
            last = {max((e for e in entries if e.first <= step.number), key=lambda e: e.first) for step in own}
            most = 2 * sum(entry.size - 1 for entry in last)  # the rest of an epoch is dealt out once more
            assert used.total() - count <= most, f"epoch {epoch} has used {used.total()} samples, {len(last)} entries"


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """All complete notes, in the order of their times, each with the path of its file."""
    notes: list[dict[str, Any]] = []
    for path in folder.rglob("*.notes"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)  # the last one may be being written
        own = {"pid": int(path.stem), "path": str(path)}
        notes += [{**own, **json.loads(line)} for line in lines if line.endswith("\n")]
    return sorted(notes, key=lambda note: note["at"])


def _make_step(number: int, notes: Sequence[dict[str, Any]], batches: Iterable[dict[str, Any]]) -> Step:
    """From the notes of all who have completed it."""
    reported = {(json.dumps(note["members"]), note["digest"]) for note in notes}
    assert len(reported) == 1, f"step {number} is not the same on all ranks: {reported}"
    samples = {note["origin"]: note["samples"] for note in batches}
    epochs = {note["epoch"] for note in batches}
    assert len(epochs) == 1
    members = tuple(tuple(sorted(part)) for part in notes[0]["members"])
    return Step(number, epochs.pop(), members, samples, notes[0]["digest"])


def _list_samples(step: Step, part: int) -> Iterable[int]:
    """What one of the optimizers has averaged over."""
    for member in step.members[part]:
        for some in step.samples[member]:
            yield from some
