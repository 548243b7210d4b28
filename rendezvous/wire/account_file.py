"""The file in which a worker counts its time, and from which its agent makes the worker's account.

The worker maps it into its memory, so that the agent can read it while the worker runs, and after it was killed. It is
an array of doubles. At each change from one part to another the worker adds the seconds of the part that ends. An
account is read at any moment: a change that is only half done loses its seconds, and no second counts twice.
"""

import operator
import os
import stat
from array import array
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from rendezvous.core.model import Worker
from rendezvous.wire.accounts import Account, RecoveryTime, WaitedFor

# The indices of single values.
LAYOUT = 0  # the number of this layout
BEGAN = 1  # when the worker has begun to count, in seconds of the host's monotonic clock
SINCE = 2  # when the present part has begun
PRESENT = 3  # the index of the present part


class Part(IntEnum):
    """The parts of a worker's time, each with its index in the file; see `Account`."""

    PENDING = 4  # in the program's own code; the end of a step makes it COMPUTE
    START = 5
    COMPUTE = 6
    WAITING = 7
    COMMUNICATION = 8
    COMMIT = 9
    CHECKPOINT = 10
    RECOVERY = 11
    REPEATED = 12
    IDLE = 13


STEPS, REPEATED_STEPS = 14, 15
RECOVERIES = 16  # how many there were
RECOVERY_TIMES = 17  # of the latest: a ring of rows with four values each, as in `RecoveryTime`
MOST_RECOVERIES = 16
RECOVERY_VALUES = 4
WAITED_SECONDS = RECOVERY_TIMES + MOST_RECOVERIES * RECOVERY_VALUES  # for each rank
MOST_RANKS = 1024  # a wait for a higher rank counts as one, and is not counted for the rank
WAITED_STEPS = WAITED_SECONDS + MOST_RANKS  # of each rank

LAYOUT_NUMBER = 40.0
ITEM_BYTES = 8
BYTES = (WAITED_STEPS + MOST_RANKS) * ITEM_BYTES
MOST_WAITED_FOR = 16  # ranks that an account names
_MOST = 2.0**31  # seconds, or steps
_TOLERANCE_SECONDS = 1.0  # by which the parts may be more than the total: no clock goes back


def read_account(path: Path, worker: Worker, began: float, ended: float, *, has_ended: bool = False) -> Account:
    """The account of a worker; only its total is known where the worker has no such file.

    Args:
        path: the file.
        worker: the worker, which may have written anything there.
        began: when its start was ordered: its process may begin later.
        ended: when it has ended, or now.
        has_ended: it has ended.
    """
    plain = Account(worker, has_ended=has_ended, total_seconds=max(0.0, ended - began))
    try:
        values = array("d", _read(path))
    except (OSError, ValueError):
        return plain
    if len(values) * ITEM_BYTES != BYTES or values[LAYOUT] != LAYOUT_NUMBER or not all(map(_is_amount, values)):
        return plain
    return _make_account(plain, values, began, ended)


def _make_account(plain: Account, values: Sequence[float], began: float, ended: float) -> Account:
    parts = {part: values[part] for part in Part}
    present = next((part for part in Part if part == values[PRESENT]), Part.PENDING)
    parts[present] += max(0.0, ended - values[SINCE])
    parts[Part.START] += max(0.0, values[BEGAN] - began)

    pending = parts.pop(Part.PENDING)
    # A worker that trains is probably in a step, also when it is killed.
    if values[STEPS] and present is not Part.IDLE:
        parts[Part.COMPUTE] += pending

    known = sum(parts.values())
    if known > plain.total_seconds + _TOLERANCE_SECONDS:
        return plain
    return Account(
        plain.worker,
        is_measured=True,
        has_ended=plain.has_ended,
        total_seconds=max(plain.total_seconds, known),
        start_seconds=parts[Part.START],
        compute_seconds=parts[Part.COMPUTE],
        waiting_seconds=parts[Part.WAITING],
        communication_seconds=parts[Part.COMMUNICATION],
        commit_seconds=parts[Part.COMMIT],
        checkpoint_seconds=parts[Part.CHECKPOINT],
        recovery_seconds=parts[Part.RECOVERY],
        repeated_seconds=parts[Part.REPEATED],
        idle_seconds=parts[Part.IDLE],
        steps=int(values[STEPS]),
        repeated_steps=int(values[REPEATED_STEPS]),
        waited_for=_list_waited_for(values),
        recoveries=_list_recoveries(values),
    )


def _list_waited_for(values: Sequence[float]) -> tuple[WaitedFor, ...]:
    """The ranks for which the worker has waited longest, by rank."""
    found = [
        WaitedFor(rank, values[WAITED_SECONDS + rank], int(values[WAITED_STEPS + rank]))
        for rank in range(MOST_RANKS)
        if values[WAITED_SECONDS + rank]
    ]
    longest = sorted(found, key=operator.attrgetter("seconds"), reverse=True)[:MOST_WAITED_FOR]
    return tuple(sorted(longest, key=operator.attrgetter("rank")))


def _list_recoveries(values: Sequence[float]) -> tuple[RecoveryTime, ...]:
    count = int(values[RECOVERIES])
    found = []
    for number in range(max(0, count - MOST_RECOVERIES), count):
        index = RECOVERY_TIMES + number % MOST_RECOVERIES * RECOVERY_VALUES
        generation, *seconds = values[index : index + RECOVERY_VALUES]
        found.append(RecoveryTime(int(generation), *seconds))
    return tuple(found)


def _is_amount(value: float) -> bool:
    return 0.0 <= value < _MOST  # also false for what is no number


def _read(path: Path) -> bytes:
    """The content of a regular file; no other one, which may block.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file.read(BYTES + 1)
        return b""
