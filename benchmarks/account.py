"""What the account of a worker's time costs: `python benchmarks/account.py`.

Prints the microseconds of processor time that the account takes of one step, on its own: its calls in a step of 1, 4
and 16 buckets of an elastic job that commits each step. It fails where a step of 4 buckets takes more than 5.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from worker_runtime.account import Part
from worker_runtime.account.account import Account

STEPS = 20_000
ROUNDS = 5
MOST_MICROSECONDS = 5.0
_WAITING, _COMMUNICATION, _COMMIT = int(Part.WAITING), int(Part.COMMUNICATION), int(Part.COMMIT)


def take_steps(account: Account, buckets: int) -> float:
    """The microseconds of a step's calls of the account; of each bucket's result the program waits once."""
    began = time.process_time()
    for _ in range(STEPS):
        with account.step:
            account.enter(_WAITING)
            account.leave_wait(1, 0)
            for _ in range(buckets):
                account.enter(_COMMUNICATION)
                account.leave()
            account.enter(_WAITING)  # for the commit round of an elastic job
            account.leave_wait(0, 0)
        with account.covering(_COMMIT):
            pass
        account.note_commit()
    return (time.process_time() - began) / STEPS * 1e6


def main() -> int:
    """Measure and print."""
    with TemporaryDirectory() as folder:
        account = Account()
        account.open(Path(folder) / "account")
        account.cover(0)
        found = {buckets: min(take_steps(account, buckets) for _ in range(ROUNDS)) for buckets in (1, 4, 16)}
        account.end()
    for buckets, microseconds in found.items():
        print(f"{buckets:3d} buckets: {microseconds:.2f} us a step")
    return int(found[4] > MOST_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
