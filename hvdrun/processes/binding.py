"""Which CPUs each worker of a host may run on: mpirun's -bind-to, by the affinity that Linux keeps for each thread.

Workers get parts of the machine round robin: worker k of a host gets core k, or socket k, or NUMA node k, and the count
begins again where there are more workers than parts. A core is all its hardware threads. Only CPUs that this process
may use count, so that the binding of a container or a scheduler stays.
"""

import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hvdrun.errors import LaunchError

SYSTEM = Path("/sys/devices/system")


class BindTo(StrEnum):
    """What each worker is bound to."""

    NONE = "none"
    CORE = "core"
    SOCKET = "socket"
    NUMA = "numa"


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU as Linux counts them, which is a hardware thread, and the parts of the machine that it belongs to.

    core: the lowest CPU of its core.
    socket, numa: the kernel's numbers.
    """

    number: int
    core: int
    socket: int
    numa: int


def choose_cpus(topology: tuple[Cpu, ...], bind_to: BindTo, local_rank: int) -> frozenset[int] | None:
    """The CPUs of the worker with this local rank; None when it is not bound."""
    match bind_to:
        case BindTo.NONE:
            return None
        case BindTo.CORE:
            parts = {cpu.number: (cpu.socket, cpu.core) for cpu in topology}
        case BindTo.SOCKET:
            parts = {cpu.number: (cpu.socket, 0) for cpu in topology}
        case BindTo.NUMA:
            parts = {cpu.number: (cpu.numa, 0) for cpu in topology}
    names = sorted(set(parts.values()))
    if not names:
        return None
    own = names[local_rank % len(names)]
    return frozenset(number for number, part in parts.items() if part == own)


def read_topology(allowed: AbstractSet[int], system: Path = SYSTEM) -> tuple[Cpu, ...]:
    """The CPUs in `allowed`, in order; where /sys has no entry, each is a core of socket 0 and NUMA node 0."""
    numas = {
        number: int(folder.name.removeprefix("node"))
        for folder in sorted((system / "node").glob("node[0-9]*"))
        for number in parse_cpus(_read(folder / "cpulist"))
    }
    return tuple(
        Cpu(number, _find_core(number, system), _find_socket(number, system), numas.get(number, 0))
        for number in sorted(allowed)
    )


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list in the format of /sys, `0-3,8,10-11`; any other text gives no CPUs."""
    cpus: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


class Binder:
    """Binds the workers of this host, each before it runs any code.

    Args:
        bind_to: what each worker is bound to.
        system: the folder with the topology of the CPUs.
    """

    def __init__(self, bind_to: BindTo, system: Path = SYSTEM) -> None:
        self._bind_to = bind_to
        self._topology: tuple[Cpu, ...] = ()
        if bind_to is not BindTo.NONE:
            self._topology = read_topology(os.sched_getaffinity(0), system)

    def bind(self, pid: int, local_rank: int) -> None:
        """Bind a process that has one thread so far; threads that it starts later inherit the binding.

        Raises:
            LaunchError: the kernel refuses.
        """
        cpus = choose_cpus(self._topology, self._bind_to, local_rank)
        if cpus is None:
            return
        try:
            with suppress(ProcessLookupError):  # it was killed meanwhile
                os.sched_setaffinity(pid, cpus)
        except OSError as error:
            raise LaunchError(
                f"a worker cannot be bound to the CPUs {describe_cpus(cpus)}: {error.strerror}; "
                "start it with -bind-to none."
            ) from error

    @contextmanager
    def bound(self, local_rank: int) -> Iterator[None]:
        """Bind the calling thread meanwhile: a process that it starts inherits the binding.

        Raises:
            LaunchError: the kernel refuses.
        """
        if self._bind_to is BindTo.NONE:
            yield
            return
        own = os.sched_getaffinity(0)
        try:
            self.bind(0, local_rank)  # 0 is the calling thread
            yield
        finally:
            os.sched_setaffinity(0, own)

    def describe(self, local_rank: int) -> str:
        """The CPUs of a worker for a log line, as `, bound to CPUs 0-3`; "" for a worker that is not bound."""
        cpus = choose_cpus(self._topology, self._bind_to, local_rank)
        if cpus is None:
            return ""
        return f", bound to CPU{'' if len(cpus) == 1 else 's'} {describe_cpus(cpus)}"


def describe_cpus(cpus: AbstractSet[int]) -> str:
    """The CPUs in the format of /sys."""
    pieces: list[list[int]] = []
    for cpu in sorted(cpus):
        if pieces and pieces[-1][-1] == cpu - 1:
            pieces[-1] = [pieces[-1][0], cpu]
        else:
            pieces.append([cpu])
    return ",".join("-".join(map(str, piece)) for piece in pieces)


def _find_core(number: int, system: Path) -> int:
    topology = system / "cpu" / f"cpu{number}" / "topology"
    # Kernels before 5.4 have the second name.
    for name in ("core_cpus_list", "thread_siblings_list"):
        if siblings := parse_cpus(_read(topology / name)):
            return min(siblings)
    return number


def _find_socket(number: int, system: Path) -> int:
    text = _read(system / "cpu" / f"cpu{number}" / "topology" / "physical_package_id")
    if text.isdecimal():
        return int(text)
    return 0


def _read(path: Path) -> str:
    """A file's text without the newline; "" where there is no such file, as in some containers."""
    with suppress(OSError):  # there is no such file
        return path.read_text(encoding="ascii").strip()
    return ""
