"""A job as one frozen value, which checks itself when it is created."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hvdrun.errors import NotEnoughSlotsError, UsageError
from hvdrun.shim.path import VARIABLE, ShimMode
from hvdrun.spec.command import reads_program
from hvdrun.spec.environment import ELASTIC
from hvdrun.spec.limits import Limits
from hvdrun.spec.log_format import LogFormat
from hvdrun.spec.mapping import take_slots
from hvdrun.spec.remote import Remote
from rendezvous.bootstrap import (
    BACKEND,
    CHECK_NAN,
    CHECK_REPLICAS,
    CHECKPOINT,
    HANG_TIMEOUT,
    TIMELINE,
    TIMELINE_MARK_CYCLES,
    WATCH_AFTER,
    Backend,
    torch_job_environment,
)
from rendezvous.core.messages import Level
from rendezvous.core.model import UNBOUNDED, Host, Policy, Slot
from rendezvous.core.scheduling import place
from rendezvous.wire.orders import WorkerOptions


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a job.

    command: the program and its arguments, for every worker on this machine.
    size: the number of workers; in an elastic job, at the start.
    hosts: the hosts that may run them, in order of preference; each host once, with the slots that it has after
        mapping. If a script names the hosts, or they join, these are the known ones. Once a static job is prepared, all
        slots are used.
    directory: the workers' working directory, on every host.
    forwarded: variables for the workers of all hosts.
    bind_to: the CPUs to which each worker is bound; a value of `hvdrun.processes.binding.BindTo`.
    stdin_rank: the rank whose worker reads hvdrun's standard input; None for none.
    prefork: workers may be forked from a process that has imported torch.
    backend: the communication backend of the workers; None for the default of their torch.
    checkpoint: the folder of the job's checkpoints, an absolute path; None for none.
    timeline: the file in which rank 0 records its timeline; None for none.
    timeline_mark_cycles: the timeline has marks of releases.
    horovod_shim: what `import horovod` imports in the workers.
    check_nan: the workers look for gradients that are not finite.
    nan_is_error: the workers look for such gradients, and raise an error.
    check_replicas: the number of steps between two comparisons of the workers' parameters; 0 for no comparison, None
        for the value in their environment.

    Raises:
        UsageError: there can be no such workers.
    """

    command: tuple[str, ...]
    size: int
    hosts: tuple[Host, ...]
    directory: Path
    forwarded: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    bind_to: str = "none"
    stdin_rank: int | None = None
    prefork: bool = True
    backend: Backend | None = None
    checkpoint: Path | None = None
    timeline: str | None = None
    timeline_mark_cycles: bool = False
    horovod_shim: ShimMode = ShimMode.AUTO
    check_nan: bool = False
    nan_is_error: bool = False
    check_replicas: int | None = None

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("there is no command to run: put it last, as in hvdrun -np 2 python train.py.")
        if not self.command[0]:
            raise UsageError("the command is empty: put a program there, as in hvdrun -np 2 python train.py.")

        if self.size < 1:
            raise UsageError(f"a job has at least one worker: {self.size} are impossible.")
        if self.stdin_rank is not None and self.stdin_rank >= self.size:
            raise UsageError(f"--stdin {self.stdin_rank} names no worker: the ranks are 0 to {self.size - 1}.")
        if self.stdin_rank is None and reads_program(self.command):
            raise UsageError(
                f"{self.command[0]} reads its program from standard input, which the workers do not get: name a "
                "script, or let one worker read it with --stdin 0."
            )

        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise UsageError(f"a host is listed twice in {', '.join(names)}: give its slots together.")

        if not self.directory.is_absolute():
            raise UsageError(f"the working directory {str(self.directory)!r} is not an absolute path.")

    @property
    def nan_check(self) -> str | None:
        """The value of HVD_CHECK_NAN; None to leave it as it is."""
        if self.nan_is_error:
            return "error"
        if self.check_nan:
            return "1"
        return None

    @property
    def options(self) -> WorkerOptions:
        """The options of the workers that each agent needs."""
        return WorkerOptions(bind_to=self.bind_to, stdin_rank=self.stdin_rank, prefork=self.prefork)


@dataclass(frozen=True, slots=True)
class Display:
    """The output of hvdrun.

    marks_ranks: each line has the rank of its worker. marks_times: each line has the time.
    marks_as_horovod: the marks have the form of Horovod's launcher.
    detach: the job outlives the terminal of hvdrun.
    output_folder: the folder for files with the workers' output, an absolute path; None for no files.
    verbose: print what hvdrun itself does.
    log_level: the least level of the sentences that are printed; verbose is the level debug.
    log_file: where hvdrun's own sentences are written too, an absolute path; None for no file.
    log_format: text or json; of the file, and without one of the sentences on standard error.
    outcome_file: where the outcome of the job is written, an absolute path; None for no file.
    dry_run: start nothing, and print what would be started.
    remarks: sentences for the user about a request that is not wrong.
    """

    marks_ranks: bool = True
    marks_times: bool = False
    marks_as_horovod: bool = False
    detach: bool = False
    output_folder: Path | None = None
    verbose: bool = False
    log_level: Level = Level.INFO
    log_file: Path | None = None
    log_format: LogFormat = LogFormat.TEXT
    outcome_file: Path | None = None
    dry_run: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def least_level(self) -> Level:
        """The least level of the sentences that are printed."""
        return Level.DEBUG if self.verbose else self.log_level


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job.

    workers: which program runs how often, and where.
    limits: the time limits, and the bounds of its size.
    remote: how hvdrun reaches its hosts.
    display: the output of hvdrun.

    Raises:
        UsageError: there can be no such job.
        NotEnoughSlotsError: the hosts offer fewer slots than there are workers.
    """

    workers: Workers
    limits: Limits = field(default_factory=Limits)
    remote: Remote = field(default_factory=Remote)
    display: Display = field(default_factory=Display)

    def __post_init__(self) -> None:
        workers, elasticity = self.workers, self.limits.elasticity
        if not self.discovers and sum(host.slots for host in workers.hosts) < workers.size:
            raise NotEnoughSlotsError(workers.hosts, workers.size)
        if elasticity is not None:
            elasticity.check(workers.size, self.limits.lease_seconds)

    @property
    def is_elastic(self) -> bool:
        """The workers may change."""
        return self.limits.elasticity is not None

    @property
    def keeps_first_hosts(self) -> bool:
        """The job needs each of its first hosts, and gets no others."""
        return not self.is_elastic

    @property
    def discovers(self) -> bool:
        """The hosts are not known at the start: a script names them, or their agents join by themselves."""
        elasticity = self.limits.elasticity
        return self.remote.joining is not None or (elasticity is not None and elasticity.script is not None)

    @property
    def usable_hosts(self) -> tuple[Host, ...]:
        """The hosts that get workers, or may get some later, each with the slots for them."""
        workers = self.workers
        if self.is_elastic:
            return workers.hosts
        return take_slots(workers.hosts, workers.size)

    @property
    def has_comparable_hosts(self) -> bool:
        """The job may have several hosts, and `hvdrun doctor` can visit them."""
        return self.remote.joining is None and (self.discovers or len(self.usable_hosts) > 1)

    @property
    def continues_in_place(self) -> bool:
        """The workers continue without a lost one: for them the job is elastic."""
        elasticity = self.limits.elasticity
        return elasticity is not None and elasticity.continues_in_place

    @property
    def max_size(self) -> int | None:
        """How many workers the job ever has at a time; None where there is no limit."""
        elasticity = self.limits.elasticity
        if elasticity is None:
            return self.workers.size
        if self.discovers:
            return elasticity.max_size
        return min(elasticity.max_size or UNBOUNDED, sum(host.slots for host in self.workers.hosts))

    def place(self) -> tuple[Slot, ...]:
        """The slots that the job starts with, if its hosts offer enough of them.

        Raises:
            TooFewSlotsError: the hosts of a script offer too few.
        """
        return place(self.workers.hosts, self.workers.size, self.max_size or UNBOUNDED)

    def is_remote(self, host: str) -> bool:
        """The host is not this machine."""
        return host in self.remote.hosts

    def command_on(self, host: str) -> tuple[str, ...]:
        """What the workers of this host execute."""
        if self.is_remote(host):
            return self.remote.command
        return self.workers.command

    @property
    def variables(self) -> Mapping[bytes, bytes]:
        """What the workers of all hosts are to have, whatever else is in their environment."""
        workers = self.workers
        seconds = {WATCH_AFTER: self.limits.watch_after_seconds, HANG_TIMEOUT: self.limits.hang_timeout_seconds}
        named: dict[str, str | Path | int | None] = {
            BACKEND: workers.backend,
            CHECKPOINT: workers.checkpoint,
            TIMELINE: workers.timeline,
            TIMELINE_MARK_CYCLES: "1" if workers.timeline_mark_cycles else None,
            CHECK_NAN: workers.nan_check,
            CHECK_REPLICAS: workers.check_replicas,
            **{name: f"{value:g}" for name, value in seconds.items() if value is not None},
        }
        chosen = {os.fsencode(name): os.fsencode(str(value)) for name, value in named.items() if value is not None}

        elasticity = self.limits.elasticity
        limit: int | None = 0
        if elasticity is not None:
            limit = elasticity.restarts.limit
        mode = {ELASTIC: "1" if self.continues_in_place else "0", **torch_job_environment(limit)}
        own = {os.fsencode(name): os.fsencode(value) for name, value in mode.items()}

        # PWD may be of hvdrun's own folder, and on another host it is the login's home.
        first = {b"PWD": os.fsencode(workers.directory), **workers.forwarded}
        return {**first, VARIABLE: os.fsencode(workers.horovod_shim), **chosen, **own}

    def policy(self) -> Policy:
        """The policy for the rendezvous; a static job has exactly `size` workers, and the first failure ends it."""
        limits, elasticity = self.limits, self.limits.elasticity
        seconds = {
            "start_timeout_seconds": limits.start_timeout_seconds,
            "lease_seconds": limits.lease_seconds,
            "grace_seconds": limits.grace_seconds,
        }

        if elasticity is None:
            return Policy.static(self.workers.size, **seconds)
        return Policy.elastic(
            elasticity.min_size,
            elasticity.max_size,
            self.workers.size,
            recovery=elasticity.recovery,
            restarts=replace(elasticity.restarts, has_checkpoint=self.workers.checkpoint is not None),
            continues_in_place=elasticity.continues_in_place,
            **seconds,
        )
