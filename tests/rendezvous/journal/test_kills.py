"""A server that is killed while it writes has lost no state that it has acknowledged, and the next one continues."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from rendezvous.core.state import State
from rendezvous.journal.sqlite import open_journal
from tests.house.sources import ROOT
from tests.rendezvous.journal.reading import close, matches
from tests.rendezvous.journal.states import list_states

MOST_TOGETHER = 8
LIMIT_SECONDS = 60


def kill_once(folder: Path, seed: int, place: int, chance: random.Random) -> tuple[int, bool]:
    """Let a server write, and kill it; up to where it has acknowledged, and whether it had come to the end."""
    command = [sys.executable, "-m", "tests.rendezvous.journal.victim", str(folder), str(seed), str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        acknowledged = place
        for _ in range(chance.randint(1, 12)):
            line = victim.stdout.readline().strip()
            if line == "end":
                break
            acknowledged = int(line)
        for _ in range(chance.randint(0, 20_000)):
            pass  # so that the kill comes at any moment of the next write
        victim.kill()
        lines = victim.stdout.read().split()
    places = [int(line) for line in lines if line.isdecimal()]
    return max([acknowledged, *places]), "end" in (line, *lines)


def find_place(states: list[State], state: State | None, acknowledged: int) -> int:
    """How many states of the history are in the journal, of those that may be."""
    for place in range(acknowledged, min(acknowledged + MOST_TOGETHER, len(states)) + 1):
        if (place == 0 and state is None) or (place and state is not None and matches(state, states[place - 1])):
            return place
    raise AssertionError(f"what was acknowledged up to {acknowledged} of {len(states)} is not in the journal")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [range(3), pytest.param(range(3, 61), marks=pytest.mark.nightly)], ids=str)
def test_a_server_killed_at_any_moment_has_lost_no_acknowledged_state(kills: range, tmp_path: Path) -> None:
    seed, place, has_ended = kills.start, 0, False
    states = list_states(seed)
    for number in kills:
        chance = random.Random(number)  # noqa: S311 - a seed that can be repeated, not a secret
        folder = tmp_path / str(seed)
        acknowledged, has_ended = kill_once(folder, seed, place, chance)
        journal = open_journal(folder, warn=pytest.fail)
        place = find_place(states, journal.read(), acknowledged)
        close(journal)
        if has_ended:
            assert place == len(states)
            seed, place = seed + 1, 0
            states = list_states(seed)
