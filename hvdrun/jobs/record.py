"""What is known of a job from its start on: a plain value, and its JSON."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from hvdrun.jobs.locations import find_locations
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.redaction import redact_command

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def read_boot() -> str:
    """The kernel's identity of this boot of the machine; "" where it has none."""
    with suppress(OSError):  # procfs is not complete, as in some containers
        return _BOOT.read_text(encoding="ascii").strip()
    return ""


def read_uptime() -> float:
    """For how many seconds this machine has run: a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job of this user.

    job: its name. command: its words, without secrets.
    size: how many workers it starts with; 0 where it has not said it. hosts: where, as far as they were named.
    begun: when hvdrun began, in seconds since 1970.
    machine: on which hvdrun began. boot: see `read_boot`.
    is_detached: it outlives its terminal.
    folder: of a detached job; "" for another one.
    marks_ranks: each line of the output begins with its rank.
    max_size: how many workers it may have; None where there is no limit, and in the record of an earlier version.
    uptime: of the machine when hvdrun began, in seconds; None in the record of an earlier version.
    """

    job: str
    command: tuple[str, ...]
    size: int = 1
    hosts: tuple[str, ...] = ()
    begun: float = field(default_factory=time.time)
    machine: str = field(default_factory=lambda: os.uname().nodename)
    boot: str = field(default_factory=read_boot)
    is_detached: bool = False
    folder: str = ""
    marks_ranks: bool = True
    max_size: int | None = None
    uptime: float | None = field(default_factory=read_uptime)

    @classmethod
    def of(cls, job: str, spec: JobSpec) -> Self:
        """The record of a job that begins now."""
        workers = spec.workers
        return cls(
            job,
            tuple(redact_command(workers.command)),
            workers.size,
            tuple(host.name for host in workers.hosts),
            is_detached=spec.display.detach,
            folder=str(find_locations(os.environ).folders / job) if spec.display.detach else "",
            marks_ranks=spec.display.marks_ranks,
            max_size=spec.max_size,
        )

    @property
    def is_of_this_machine(self) -> bool:
        """The hvdrun of the job runs, or ran, on this machine."""
        return self.machine == os.uname().nodename

    @property
    def has_lost_its_machine(self) -> bool:
        """The machine of hvdrun has been started again since the job began."""
        return self.is_of_this_machine and self.boot != read_boot()

    @property
    def age_seconds(self) -> float:
        """How long ago hvdrun began. Where the machine was started again, only a clock tells that can be set."""
        if self.uptime is None or self.boot != read_boot():
            return max(0.0, time.time() - self.begun)
        return read_uptime() - self.uptime

    def encode(self) -> str:
        """The record as a JSON document."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, document: str) -> Self:
        """The record in a JSON document; fields of a newer hvdrun are dropped.

        Raises:
            ValueError, TypeError: there is none in it.
        """
        known = {each.name for each in fields(cls)}
        found: dict[str, Any] = {name: value for name, value in dict(json.loads(document)).items() if name in known}
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
        return cls(**{"uptime": None, **found, **lists})


def join_words(command: Sequence[str]) -> str:
    """A command in one line."""
    return " ".join(" ".join(command).split())
