"""A mark in the environment of a member of a job, for the processes that it starts.

They inherit the variables by which it has joined, and would join in its place: the member would lose the connections
of a job that goes on without it. So they are told who the member is.
"""

import os
from collections.abc import Mapping, MutableMapping

from worker_runtime.errors import MemberElsewhereError

_MARK = "HVD_MEMBER"  # the member's process and rank, and as whom it has joined


def set_mark(environment: MutableMapping[str, str], identity: str, rank: int) -> None:
    """This process has joined.

    Args:
        environment: what processes inherit that this one starts.
        identity: as whom it has joined.
        rank: its rank.
    """
    environment[_MARK] = f"{os.getpid()} {rank} {identity}"


def check_mark(environment: Mapping[str, str], identity: str) -> None:
    """Make sure that no process above this one is the member of this identity.

    Raises:
        MemberElsewhereError: one is, and has not left.
    """
    pid, _, rest = environment.get(_MARK, "").partition(" ")
    rank, _, marked = rest.partition(" ")
    if pid and marked == identity and pid != str(os.getpid()):
        raise MemberElsewhereError(int(pid), int(rank))


def remove_mark(environment: MutableMapping[str, str]) -> None:
    """This process has left; another one's mark stays."""
    if environment.get(_MARK, "").partition(" ")[0] == str(os.getpid()):
        del environment[_MARK]
