"""What the workers of a job are: how many of which program, where, and with what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from hvdrun.errors import UsageError
from hvdrun.shim.path import ShimMode
from rendezvous.bootstrap import Backend
from rendezvous.core.model import Host
from rendezvous.wire.orders import PlainValue


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a job.

    command: the program and its arguments, the same for every worker on this machine.
    size: how many workers; in an elastic job, with how many it starts.
    hosts: where they may run, in order of preference; each host once, with the slots that mapping leaves it. Where a
        script names them, those that are known.
    directory: their working directory, on every host.
    forwarded: variables for the workers of all hosts.
    bind_to: what each worker is bound to; see `hvdrun.processes.binding.BindTo`.
    stdin_rank: which worker reads hvdrun's own standard input; None for none.
    prefork: workers may be forked from a process that has imported what they need.
    backend: what hvd's tensors travel through; None leaves it to what the workers' torch has.
    checkpoint: the folder of the job's checkpoints, an absolute path; None for none.
    horovod_shim: what `import horovod` means in the workers.

    Raises:
        UsageError: such workers are impossible.
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
    horovod_shim: ShimMode = ShimMode.AUTO

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
        if not self.directory.is_absolute():
            raise UsageError(f"the working directory {str(self.directory)!r} is not an absolute path.")

    def list_plain(self) -> dict[str, PlainValue]:
        """By name, what agents are told of the workers; what is no plain value reaches them in another way."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value is None or isinstance(value, bool | int | float | str)}
