"""What a program of hvdrun does before it imports any package but this one."""

import signal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_NAMES = frozenset({"hvdrun", "protos", "rendezvous"})
_ROOT = str(Path(__file__).resolve().parents[2])

_ASKING = (signal.SIGRTMIN + 12, signal.SIGRTMIN + 13)  # where a worker is, and a worker may be a hvdrun

# Requests to end: their default ends a process, and they show no fault of it. Schedulers send some before a limit.
STOPPING: tuple[int, ...] = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGXCPU,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    *(number for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if number not in _ASKING),
)


def has_foreign_handler(number: int) -> bool:
    """Whether a library that is no module of Python's handles this signal, such as a profiler its timer's."""
    return signal.getsignal(number) is None


class EarlySignal:
    """Handles a signal until the program answers it: the default would kill a program that starts.

    The processes that the program starts do not inherit this handler.
    """

    def __init__(self) -> None:
        self._has_come = False

    def __call__(self, *_: object) -> None:
        """Record the signal."""
        self._has_come = True

    def take(self) -> bool:
        """Whether the signal has come since the last call."""
        has_come, self._has_come = self._has_come, False
        return has_come


def keep_notice() -> None:
    """Record stop notices, and what is for the workers, unless it is ignored; `signals` answers them later."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, EarlySignal())


class _OwnFinder(MetaPathFinder):
    """Finds the packages of this project beside this one, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path
        if fullname in _NAMES:
            return PathFinder.find_spec(fullname, [_ROOT], target)
        return None


def prefer_own_packages() -> None:
    """Import this project's packages from here, wherever PYTHONPATH or the working directory has others of these names.

    PYTHONPATH is for the workers, and may hold a `protos` or `rendezvous` of the user. This changes imports in the
    whole process, so only programs call it.
    """
    sys.meta_path.insert(0, _OwnFinder())
