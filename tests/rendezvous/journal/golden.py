"""Writes journals and the schema of this version into golden/VERSION, for later versions to read.

Once for each release, and while a version is in the making as often as its states change:

    python -m tests.rendezvous.journal.golden
"""

import json
import shutil
from pathlib import Path

from hvdrun.version import __version__
from rendezvous.core.lifecycle import Phase
from rendezvous.core.state import State
from rendezvous.journal.ballast import Ballast
from rendezvous.journal.codec import describe, encode
from tests.rendezvous.core.histories import KINDS
from tests.rendezvous.journal.reading import opened, write
from tests.rendezvous.journal.states import list_states

GOLDEN = Path(__file__).with_name("golden")
_SEEDS = 20  # of each kind of history: the richest is kept


def count_given(state: State) -> int:
    """How many fields differ from those of a job that begins."""
    empty = encode(State(state.policy))
    return sum(value != empty[name] for name, value in encode(state).items())


def find_rich(kind: int) -> list[State]:
    """The states of a history of this kind, up to the one that says most while the job runs."""
    best: list[State] = []
    for seed in range(kind, len(KINDS) * _SEEDS, len(KINDS)):
        states = [state for state in list_states(seed) if state.phase is not Phase.FINISHED]
        place = max(range(len(states)), key=lambda number: count_given(states[number]))
        if not best or count_given(states[place]) > count_given(best[-1]):
            best = states[: place + 1]
    return best


def main() -> None:
    """Write them."""
    folder = GOLDEN / __version__
    shutil.rmtree(folder, ignore_errors=True)
    for kind in sorted({KINDS.index(each) for each in KINDS}):
        with opened(folder / str(kind)) as journal:
            write(journal, *find_rich(kind))
            journal.put("secret", b"of a job")
        Ballast(folder / str(kind) / "journal.ballast").release()
    schema = json.dumps(describe(State), indent=1, sort_keys=True)
    (folder / "schema.json").write_text(f"{schema}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
