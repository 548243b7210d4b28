"""A server that lives on a random history with its journal, until it is killed: FOLDER SEED PLACE.

It prints the place in the history up to which all states are durable, one number a line. PLACE is where it continues.
"""

import asyncio
import random
import sys
from pathlib import Path

from rendezvous.core.state import State
from rendezvous.journal.sqlite import SqliteJournal, open_journal
from tests.rendezvous.journal.states import follow_history


class Victim:
    """Writes the states of a history as they come, some of them together.

    Args:
        journal: the open one.
        seed: of how many are written together.
        place: how many states were written before.
    """

    def __init__(self, journal: SqliteJournal, seed: int, place: int) -> None:
        self.journal = journal
        self.place = place
        self.chance = random.Random(f"{seed} {journal.term}")  # noqa: S311 - a seed that can be repeated, not a secret
        self.loop = asyncio.new_event_loop()
        self.seen = 0
        self.together: list[State] = []
        self.most = 1

    def see(self, state: State) -> None:
        """Write it, now or with the next ones."""
        self.seen += 1
        if self.seen > self.place:
            self.together.append(state)
            if len(self.together) >= self.most:
                self.flush()

    def flush(self) -> None:
        """Write what was seen."""
        self.loop.run_until_complete(self.write())
        self.together, self.most = [], self.chance.randint(1, 8)
        print(self.seen, flush=True)  # noqa: T201 - the test reads it

    async def write(self) -> None:
        """Ask for all, before the first is durable."""
        await asyncio.gather(*map(self.journal.write, self.together))


def main() -> None:
    """Live until the end of the history."""
    folder, seed, place = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    victim = Victim(open_journal(folder, warn=print), seed, place)
    follow_history(seed, victim.see)
    victim.flush()
    print("end", flush=True)  # noqa: T201 - the test reads it
    sys.stdin.read()


if __name__ == "__main__":
    main()
