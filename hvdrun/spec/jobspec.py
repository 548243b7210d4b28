"""What a job is asked to be: the command line read into one frozen value that is right once it exists."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hvdrun.errors import NotEnoughSlotsError, UsageError
from hvdrun.shim import path as horovod_path
from hvdrun.shim.path import ShimMode
from hvdrun.spec.elasticity import ELASTIC, Elasticity
from hvdrun.spec.mapping import BindTo
from rendezvous.backend import Backend
from rendezvous.bootstrap import BACKEND, CHECKPOINT
from rendezvous.core.model import UNBOUNDED, Host, Policy, Slot
from rendezvous.core.scheduling import place

if TYPE_CHECKING:  # few jobs have one of these
    from hvdrun.spec.allocation import Allocation
    from hvdrun.spec.joining import Joining

DEFAULT_START_TIMEOUT_SECONDS = 120.0
LEAST_LEASE_SECONDS = 0.5  # two ticks of the rendezvous
DEFAULT_LEASE_SECONDS = 30.0
DEFAULT_LAUNCHER_TIMEOUT_SECONDS = 60.0  # a launcher that is stopped, or sleeps, may come back
DEFAULT_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What is to hold for the SSH connections of all hosts, whatever ~/.ssh/config says.

    port: of their SSH servers; None leaves it to the configuration.
    identity_file: the private key to log in with, an absolute path; None leaves it to the configuration and the agent.
    accept_new: the key of a host that known_hosts does not have is accepted.
    """

    port: int | None = None
    identity_file: Path | None = None
    accept_new: bool = False


@dataclass(frozen=True, slots=True)
class RemoteSide:
    """The hosts of a job that are not this machine, and what is different there.

    hosts: their names, as the job has them. With --agent-prefix all hosts are such.
    here: those of them that are this machine all the same.
    command: what their workers execute.
    interpreter: the Python that their agents are started with, an absolute path; "" where there are no such hosts.
    """

    hosts: frozenset[str] = frozenset()
    command: tuple[str, ...] = ()
    interpreter: str = ""
    here: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job.

    command: the program and its arguments, the same for every worker on this machine.
    size: how many workers; in an elastic job, with how many it starts.
    hosts: where they may run, in order of preference; each host once, with the slots that mapping leaves it. Where a
        script names them, those that are known.
    joining: how the hosts come by themselves, so that they are not known before; None where they are named.
    elasticity: how the job may shrink and grow; None for a static job, whose workers stay the same.
    directory: the workers' working directory, on every host.
    remote: which hosts are not this machine, and what is different there; filled in by
        `hvdrun.hosts.preparation`.
    remote_python: what replaces a bare `python` there, an absolute path; None for the path that it has here.
    remote_prefix: what the shell there does before it starts an agent.
    rsh: the words of a command that reaches these hosts in place of hvdrun's own SSH; none for that.
    agent_prefix: the words of a program that runs the agents of all hosts, in a container for example.
    allocation: what a scheduler has given to the job; None where the user has named its hosts.
    ssh: how these hosts are connected to.
    users: by host, the user to log in as, where one was given.
    interfaces: the network interfaces to use between hosts, the preferred one first; none leaves it to what is proven.
    forwarded: variables for the workers of all hosts.
    bind_to: what each worker is bound to.
    start_timeout_seconds: how long the job may take until all workers have joined.
    lease_seconds: how long an agent may be silent before its host is lost.
    launcher_timeout_seconds: how long hvdrun may be silent before a host gives it up; the lease, where that is longer.
    grace_seconds: between SIGTERM or SIGINT and SIGKILL; 0 kills at once.
    stdin_rank: which worker reads hvdrun's own standard input; None for nobody.
    prefork: workers may be forked from a process that has imported what they need.
    backend: what hvd's tensors travel through; None leaves it to what the workers' torch has.
    checkpoint: the folder of the job's checkpoints, an absolute path; None for none.
    horovod_shim: what `import horovod` means in the workers.
    marks_ranks: each line of output says which worker it is from, and marks_times: when it came.
    marks_as_horovod: the marks are those of Horovod's launcher.
    output_folder: of the files that get the workers' output too, an absolute path; None for no files.
    verbose: tell what hvdrun itself does.
    dry_run: start nothing, and tell what would be started.
    remarks: what the user should know of the request, although it is right; sentences.

    Raises:
        UsageError: such a job is impossible.
        NotEnoughSlotsError: the hosts offer fewer slots than there are workers.
    """

    command: tuple[str, ...]
    size: int
    hosts: tuple[Host, ...]
    directory: Path
    elasticity: Elasticity | None = None
    joining: "Joining | None" = None
    remote: RemoteSide = RemoteSide()
    remote_python: str | None = None
    remote_prefix: str | None = None
    rsh: tuple[str, ...] = ()
    agent_prefix: tuple[str, ...] = ()
    allocation: "Allocation | None" = None
    ssh: SshOptions = SshOptions()
    users: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    forwarded: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    bind_to: BindTo = BindTo.NONE
    start_timeout_seconds: float = DEFAULT_START_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    launcher_timeout_seconds: float = DEFAULT_LAUNCHER_TIMEOUT_SECONDS
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    stdin_rank: int | None = None
    prefork: bool = True
    backend: Backend | None = None
    checkpoint: Path | None = None
    horovod_shim: ShimMode = ShimMode.AUTO
    marks_ranks: bool = True
    marks_times: bool = False
    marks_as_horovod: bool = False
    output_folder: Path | None = None
    verbose: bool = False
    dry_run: bool = False
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("there is no command to run: put it last, as in hvdrun -np 2 python train.py.")
        if not self.command[0]:
            raise UsageError("the command is empty: put a program there, as in hvdrun -np 2 python train.py.")
        if self.size < 1:
            raise UsageError(f"a job has at least one worker: {self.size} are impossible.")
        if self.stdin_rank is not None and self.stdin_rank >= self.size:
            raise UsageError(f"--stdin {self.stdin_rank} names no worker: the ranks are 0 to {self.size - 1}.")
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise UsageError(f"a host stands twice in {', '.join(names)}: give its slots together.")
        if not self.discovers and sum(host.slots for host in self.hosts) < self.size:
            raise NotEnoughSlotsError(self.hosts, self.size)
        if not self.directory.is_absolute():
            raise UsageError(f"the working directory {str(self.directory)!r} is not an absolute path.")
        self._check_durations()
        if self.elasticity is not None:
            self.elasticity.check(self.size, self.lease_seconds)

    def _check_durations(self) -> None:
        for option, seconds in (
            ("--start-timeout", self.start_timeout_seconds),
            ("--lease", self.lease_seconds),
            ("--launcher-timeout", self.launcher_timeout_seconds),
        ):
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{option} must be longer than 0 seconds, as in {option} 30s.")
        if self.lease_seconds < LEAST_LEASE_SECONDS:
            raise UsageError(
                f"--lease {self.lease_seconds:g}s is too short: hosts that are well would count as lost between two of "
                f"their reports; the shortest is {LEAST_LEASE_SECONDS:g}s."
            )
        if not (math.isfinite(self.grace_seconds) and self.grace_seconds >= 0):
            raise UsageError("--grace must not be negative, as in --grace 5s.")

    @property
    def is_elastic(self) -> bool:
        """Its workers may change."""
        return self.elasticity is not None

    @property
    def discovers(self) -> bool:
        """Its hosts are not known at the start: a script names them, or they come by themselves."""
        return self.joining is not None or self.script is not None

    @property
    def script(self) -> str | None:
        """What names its hosts, again and again, where something does."""
        return None if self.elasticity is None else self.elasticity.script

    @property
    def stays_inside(self) -> bool:
        """All its hosts are this machine, as far as they are known."""
        return not self.remote.hosts or (self.joining is not None and self.joining.is_inside)

    @property
    def inner_way(self) -> str:
        """How a host reaches the rendezvous that reaches none of this machine's addresses."""
        return "through its ssh connection" if self.joining is None else "through the port of --bind"

    @property
    def leaves_paths(self) -> bool:
        """The hosts that are not this machine know by themselves where programs are."""
        return self.remote_prefix is not None or bool(self.agent_prefix) or self.joining is not None

    def place(self) -> tuple[Slot, ...]:
        """The slots that the job starts with, if its hosts offer enough of them.

        Raises:
            TooFewSlotsError: they do not, which only a script's hosts can.
        """
        if self.elasticity is None:
            return place(self.hosts, self.size, self.size)
        return place(self.hosts, self.size, self.elasticity.max_size or UNBOUNDED)

    def is_remote(self, host: str) -> bool:
        """The host is not this machine."""
        return host in self.remote.hosts

    def command_on(self, host: str) -> tuple[str, ...]:
        """What the workers of this host execute."""
        return self.remote.command if self.is_remote(host) else self.command

    @property
    def variables(self) -> Mapping[bytes, bytes]:
        """What the workers of all hosts are to have, whatever else is in their environment."""
        named = ((BACKEND, self.backend), (CHECKPOINT, self.checkpoint))
        chosen = {os.fsencode(name): os.fsencode(value) for name, value in named if value is not None}
        mode = {os.fsencode(ELASTIC): b"1" if self.is_elastic else b"0"}
        return {**self.forwarded, horovod_path.VARIABLE: os.fsencode(self.horovod_shim), **chosen, **mode}

    @property
    def patience_seconds(self) -> float:
        """How long a remote agent goes on without a word from hvdrun: no shorter than hvdrun does without one of it."""
        return max(self.launcher_timeout_seconds, self.lease_seconds)

    def policy(self) -> Policy:
        """What the rendezvous is told; of a static job: exactly `size` workers, and the first failure ends it."""
        if self.elasticity is not None:
            return Policy.elastic(
                self.elasticity.min_size,
                self.elasticity.max_size,
                self.size,
                recovery=self.elasticity.recovery(),
                start_timeout_seconds=self.start_timeout_seconds,
                lease_seconds=self.lease_seconds,
                grace_seconds=self.grace_seconds,
            )
        return Policy.static(
            self.size,
            start_timeout_seconds=self.start_timeout_seconds,
            lease_seconds=self.lease_seconds,
            grace_seconds=self.grace_seconds,
        )
