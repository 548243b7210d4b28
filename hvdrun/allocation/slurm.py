"""A Slurm allocation (`sbatch`, `salloc`, `srun --pty`): its hosts, their slots, and how a step starts in it.

Lists of hosts are expanded here, since scontrol may be missing in a container. Only the GPUs come from scontrol: with
salloc, no variable has them.
"""

import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from hvdrun.errors import UsageError
from hvdrun.spec.remote import Allocation, AllocationError
from hvdrun.spec.slurm_lists import expand_counts, expand_hosts
from rendezvous.core.model import Host

Item = TypeVar("Item")

SCHEDULER_SECONDS = 10.0  # scontrol waits for slurmctld for minutes
_OF_THE_JOB = re.compile(r"SLURM_(JOB_.+|JOBID|CONF|CLUSTER_NAME|SUBMIT_.+|RESTART_COUNT|ARRAY_.+|JWT)")
_SLURM = re.compile(r"S(LURM|BATCH|ALLOC|RUN)_")
_ON_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=(\S*)")
_INTERACTIVE_STEP = str(0xFFFFFFFA)  # of salloc, which keeps the job's variables
_INDICES = re.compile(r"\(.*?\)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,]+)?:(\d+)(?=,|$)")
# One process gets all CPUs that the job has on the host: the agent divides them. --gpus: srun refuses --gres in a job
# that has requested GPUs as a whole, or for each task. --unbuffered: srun would hold output until a line ends, and
# frames have no lines.
_STEP = (
    "srun --nodes=1 --ntasks=1 --nodelist={host} --overlap --kill-on-bad-exit=0 --no-kill --wait=0 --export=ALL "
    "--cpu-bind=none --cpus-per-task={cpus} {gpus} --mem=0 --mpi=none --chdir=/ --unbuffered --quiet"
)


@dataclass(frozen=True, slots=True)
class Node:
    """The job's share of a host."""

    cpus: int
    gpus: int


def find_slurm(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that this process runs in; None where there is none.

    Raises:
        AllocationError: its variables cannot be read.
        UsageError: srun has started several of this program, or the job is heterogeneous.
    """
    number, listed = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not number or not listed:
        return None

    copies = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if copies != "1":
        raise UsageError(
            f"srun has started {copies} hvdruns, each of which would start all workers: start one, without srun or "
            "with srun --ntasks=1."
        )

    name = f"Slurm job {number}"
    components = environment.get("SLURM_HET_SIZE", "1")
    # The other variables are those of the first component.
    if components != "1":
        raise UsageError(
            f"{name} is heterogeneous, with {components} components, and hvdrun would use the hosts of the first one "
            "alone: name the hosts with -H, or request one component."
        )

    hosts = _expand(name, "SLURM_JOB_NODELIST", expand_hosts, environment)
    counts = _expand(name, "SLURM_JOB_CPUS_PER_NODE", expand_counts, environment)
    cpus = dict(zip(hosts, counts, strict=False))
    gpus = read_gpus(_ask_scontrol(number, environment)) or dict.fromkeys(hosts, _count_gpus_here(environment))
    nodes = {host: Node(cpus.get(host, 1), gpus.get(host, 0)) for host in hosts}
    slots = _count_slots(name, nodes, environment)

    return Allocation(
        name,
        tuple(Host(host, slots.get(host, 1)) for host in hosts),
        is_sized=bool(slots),
        steps={host: write_step(host, node) for host, node in nodes.items()},
        here=environment.get("SLURMD_NODENAME"),
    )


def write_step(host: str, node: Node) -> tuple[str, ...]:
    """The words that precede a command to run it as a step on this host."""
    gpus = f"--gpus={node.gpus}" if node.gpus else "--gres=none"
    return tuple(_STEP.format(host=host, cpus=node.cpus, gpus=gpus).split())


def leave_steps(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for srun, which would take sbatch's variables about tasks as options of the step."""
    return {name: value for name, value in environment.items() if not _SLURM.match(name) or _OF_THE_JOB.fullmatch(name)}


def read_gpus(details: str) -> dict[str, int]:
    """The number of the job's GPUs by host, from `scontrol show job --details`; empty where that does not list them."""
    found: dict[str, int] = {}
    for listed, gres in _ON_NODES.findall(details):
        total = sum(int(number) for number in _GPUS.findall(_INDICES.sub("", gres)))
        with suppress(ValueError):  # perhaps another release of Slurm
            found |= dict.fromkeys(expand_hosts(listed), total)
    return found


def _count_slots(name: str, nodes: Mapping[str, Node], environment: Mapping[str, str]) -> dict[str, int]:
    """The slots by host: tasks where the job requests tasks, else GPUs; empty where it requests neither.

    Within a step, the number of tasks is that of the step.
    """
    in_step = "SLURM_STEP_NUM_TASKS" in environment and environment.get("SLURM_STEP_ID") != _INTERACTIVE_STEP
    if in_step and (each := environment.get("SLURM_NTASKS_PER_NODE", "")).isdecimal():
        return dict.fromkeys(nodes, int(each))
    if not in_step and ("SLURM_NTASKS" in environment or "SLURM_NTASKS_PER_NODE" in environment):
        counts = _expand(name, "SLURM_TASKS_PER_NODE", expand_counts, environment)
        return dict(zip(nodes, counts, strict=False))
    found = {host: node.gpus for host, node in nodes.items()}
    if all(found.values()):
        return found
    return {}


def _expand(
    name: str, variable: str, read: Callable[[str], tuple[Item, ...]], environment: Mapping[str, str]
) -> tuple[Item, ...]:
    text = environment.get(variable, "")
    try:
        return read(text)
    except ValueError:
        raise AllocationError(name, variable, f"is {text!r}") from None


def _count_gpus_here(environment: Mapping[str, str]) -> int:
    """The number of GPUs of this host; the others are assumed to have as many."""
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    if count.isdecimal():
        return int(count)
    return 0


def _ask_scontrol(number: str, environment: Mapping[str, str]) -> str:
    """The output of scontrol about the job; empty where scontrol does not run."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", "--details", "--oneliner", number],  # noqa: S607 - where PATH has it
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=SCHEDULER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
