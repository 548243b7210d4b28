"""What the workers of `restart_worker.py` have written down: when one was killed, and when all trained again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

SIZE = 3


def read_restarts(folder: Path, kills: int) -> Sequence[float]:
    """The seconds from each kill to the first all_reduce that all have completed after it."""
    killed = {note["round"]: note["at"] for note in _read_notes(folder) if note["what"] == "killed"}
    complete = read_complete(folder)
    restarts = []
    for number in sorted(killed):
        back = next((complete[life] for life in sorted(complete) if life > number), None)
        if number < kills and back is not None:
            restarts.append(back - killed[number])
    return restarts


def read_complete(folder: Path) -> Mapping[int, float]:
    """When the last worker had completed the first all_reduce, for each round in which all have."""
    ends: dict[int, list[float]] = {}
    for note in _read_notes(folder):
        if note["what"] == "complete":
            ends.setdefault(note["round"], []).append(note["at"])
    return {number: max(each) for number, each in ends.items() if len(each) == SIZE}


def _read_notes(folder: Path) -> Sequence[dict[str, float]]:
    """All notes; a line that is being written is left for the next time."""
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.notes")]
    return [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
