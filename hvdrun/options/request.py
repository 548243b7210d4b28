"""Makes a job of what the options say, and completes a request that lacks the number of workers."""

import os
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdrun.errors import IdentityFileError, UsageError
from hvdrun.options.conflicts import ELASTIC, choose_elasticity, choose_joining, find_idle, refuse_two_ways
from hvdrun.options.flags import find_command
from hvdrun.options.option import Given
from hvdrun.options.settling import Settled, choose, settle
from hvdrun.spec.command import find_directory
from hvdrun.spec.environment import choose_forwarded
from hvdrun.spec.hosts import HostList, discover_hosts
from hvdrun.spec.jobspec import Display, JobSpec
from hvdrun.spec.limits import DEFAULT_LEASE_SECONDS, ELASTIC_LEASE_SECONDS, Elasticity, Limits
from hvdrun.spec.mapping import map_workers
from hvdrun.spec.redaction import redact_command
from hvdrun.spec.remote import Joining, Remote
from hvdrun.spec.workers import Workers
from rendezvous.bootstrap import JOB

if TYPE_CHECKING:
    from hvdrun.spec.allocation import Allocation

LONGEST_EXAMPLE = 120  # characters; a longer command line is not repeated in an error

_SCHEDULERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "K_MPI_JOB_ROLE")
_NO_MPI = "-mca has no effect: there is no MPI underneath, the workers talk through gloo or NCCL"
_MCA_REMEDIES = {  # settings of Open MPI that have an option here
    "btl_tcp_if_include": "--network-interfaces",
    "oob_tcp_if_include": "--network-interfaces",
    "plm_rsh_agent": "--rsh",
    "plm_rsh_args": "-p, -i and ~/.ssh/config",
}


def make_job(
    typed: Mapping[str, Given],
    command: tuple[str, ...],
    environment: Mapping[str, str],
    complete: Callable[[Mapping[str, Any]], str],
    *,
    like_horovod: bool = False,
) -> JobSpec:
    """Turn what was typed, and the configuration file that it names, into a job; write one where that is asked for.

    Args:
        typed: what was given to options, by dest.
        command: the user's; none where the file may have it.
        environment: of hvdrun.
        complete: the command line as it would be with -np.
        like_horovod: what means nothing in the file, or in a job that is not elastic, is only remarked on.

    Raises:
        HvdrunError: the job is impossible, or names what does not exist.
    """
    settled, filed_command, remarks = settle_request(typed, environment, like_horovod=like_horovod)
    command = command or filed_command
    allocation = choose_allocation(settled.values, environment)
    values = settled.values if allocation is None else fill_in(settled.values, allocation)
    if values["size"] is None:
        raise UsageError(f"the number of workers is missing: give it with -np, as in {complete(values)}")
    own = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    spec = make_spec(values, command, own, allocation, remarks)
    if settled.values["write_config"] is not None:
        from hvdrun.options.configuration.file import write_configuration  # noqa: PLC0415 - the same

        of_others = set(ELASTIC) - settled.values["typed"] if spec.limits.elasticity is None else ()
        write_configuration(settled.values["write_config"], leave_out(of_others, settled.given), command)
    return spec


def settle_request(
    typed: Mapping[str, Given], environment: Mapping[str, str], *, like_horovod: bool = False
) -> tuple[Settled, tuple[str, ...], tuple[str, ...]]:
    """All options' values, the file's command, and what to say of all that; see `make_job`.

    Raises:
        HvdrunError: one cannot be read.
    """
    remarks: list[str] = []
    command: tuple[str, ...] = ()
    filed: dict[str, Given] = {}
    sources: Mapping[str, str] = {}
    if "config_file" in typed:
        from hvdrun.options.configuration.file import read_configuration  # noqa: PLC0415 - few jobs have a file

        found = read_configuration(str(typed["config_file"]), ignores_unknown=like_horovod)
        filed, sources, command = found.given, found.sources, found.command
        remarks.extend(found.remarks)
    settled = settle(typed, filed, environment, sources)
    if like_horovod:
        idle = find_idle(settled.values)
        settled = settle(leave_out(idle, typed), leave_out(idle, filed), environment, sources)
        if idle:
            verb = "has" if len(idle) == 1 else "have"
            remarks.append(f"{', '.join(idle.values())} {verb} no effect: the workers of this job stay the same.")
    return settled, command, tuple(remarks)


def leave_out(dests: Container[str], given: Mapping[str, Given]) -> dict[str, Given]:
    """What was given, without some options."""
    return {dest: value for dest, value in given.items() if dest not in dests}


def choose_allocation(values: Mapping[str, Any], environment: Mapping[str, str]) -> "Allocation | None":
    """What a scheduler has given to the job; None where its hosts are named, or in a worker, whose job has it.

    Raises:
        HvdrunError: what the scheduler says cannot be understood.
    """
    if values["wait_for_agents"] or any(values[dest] is not None for dest in ("hosts", "hostfile", "script")):
        return None
    if JOB in environment or not any(mark in environment for mark in _SCHEDULERS):
        return None
    from hvdrun.allocation.found import find_allocation  # noqa: PLC0415 - few jobs have a scheduler

    found = find_allocation(environment, is_elastic=values["min_size"] is not None)
    return None if found is None else found.fit(values["size"])


def fill_in(values: Mapping[str, Any], allocation: "Allocation") -> dict[str, Any]:
    """The options' values with what the allocation says where they say nothing."""
    filled = {**values, "size": values["size"] or allocation.slots}
    if allocation.script is not None:
        filled["script"] = allocation.script
        filled["slots_per_host"] = values["slots_per_host"] or max(host.slots for host in allocation.hosts)
    return filled


def make_spec(
    values: Mapping[str, Any],
    command: tuple[str, ...],
    own: Mapping[bytes, bytes],
    allocation: "Allocation | None" = None,
    remarks: tuple[str, ...] = (),
) -> JobSpec:
    """Turn the options' values, by dest, into a job: an option gives the field that its dest names.

    Args:
        values: all of them, as `Option.read` reads them; "size" has one.
        command: the user's.
        own: the environment of hvdrun.
        allocation: what a scheduler has given to the job.
        remarks: what the user should know of the request.

    Raises:
        HvdrunError: the job is impossible, or names what does not exist.
    """
    refuse_two_ways(values)
    elasticity = choose_elasticity(values)
    here = find_directory()
    joining = choose_joining(values, here)
    listed = list_hosts(values, elasticity, joining, allocation)
    lease_seconds = values["lease_seconds"] or (ELASTIC_LEASE_SECONDS if elasticity else DEFAULT_LEASE_SECONDS)
    found = () if allocation is None else (allocation.describe(),)
    return JobSpec(
        _choose_workers(values, command, own, here, listed),
        choose(Limits, values, lease_seconds=lease_seconds, elasticity=elasticity),
        choose(
            Remote,
            values,
            hosts=frozenset(),
            rsh=_anchor(values["rsh"] or (), here),
            ssh_identity_file=find_identity_file(values["ssh_identity_file"], here),
            users=listed.users,
            interfaces=tuple(dict.fromkeys(name for names in values["interfaces"] for name in names)),
            allocation=allocation,
            joining=joining,
        ),
        choose(
            Display,
            values,
            output_folder=_locate(values["output_folder"], here),
            remarks=(*explain_mca(values["mca"]), *found, *remarks),
        ),
    )


def _choose_workers(
    values: Mapping[str, Any], command: tuple[str, ...], own: Mapping[bytes, bytes], here: Path, listed: HostList
) -> Workers:
    directory = here / (values["directory"] or "")
    forwarded = choose_forwarded(values["forwarded"], own)
    if values["directory"] is not None:
        forwarded.setdefault(b"PWD", os.fsencode(directory))
    return choose(
        Workers,
        values,
        command=command,
        hosts=map_workers(listed.hosts, values["size"], values["map_by"], oversubscribe=values["oversubscribe"]),
        directory=directory,
        forwarded=forwarded,
        checkpoint=_locate(values["checkpoint"], here),
    )


def _locate(path: Path | None, here: Path) -> Path | None:
    return None if path is None else here / path


def _anchor(words: Sequence[str], here: Path) -> tuple[str, ...]:
    """A program's words; they are run from another folder than this one, from which its path counts."""
    program, *others = words or [""]
    return (str(here / program) if "/" in program else program, *others) if words else ()


def list_hosts(
    values: Mapping[str, Any], elasticity: Elasticity | None, joining: Joining | None, allocation: "Allocation | None"
) -> HostList:
    """The hosts of the job, as far as they are known; none yet where a script names them, or they come by themselves.

    Raises:
        HvdrunError: they cannot be read.
    """
    if joining is not None or (elasticity is not None and elasticity.script is not None):
        return HostList((), {})
    if allocation is not None:
        return HostList(allocation.hosts, {})
    return discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=values["size"])


def complete(words: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command line as it would be with -np: a bare number, all slots of the given hosts, or two workers."""
    size, start = 2, find_command(words)
    if words[start : start + 1] and words[start].isdecimal():  # as in `hvdrun 4 python train.py`
        size, words = int(words[start]), [*words[:start], *words[start + 1 :]]
    elif values["hosts"] is not None or values["hostfile"] is not None:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=size)
        size = sum(host.slots for host in listed.hosts)
    typed = shlex.join(redact_command(words))
    is_shown = start < len(words) and typed.isprintable() and len(typed) <= LONGEST_EXAMPLE
    return f"hvdrun -np {size} {typed if is_shown else 'python train.py'}"


def explain_mca(settings: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What to say of -mca, once, and where hvdrun has a word of its own for what it sets."""
    if not settings:
        return ()
    remedies = dict.fromkeys(f"{_MCA_REMEDIES[name]} for {name}" for name, _ in settings if name in _MCA_REMEDIES)
    return (f"{_NO_MPI}{'; there is ' if remedies else ''}{', '.join(remedies)}.",)


def find_identity_file(path: Path | None, here: Path) -> Path | None:
    """The absolute path of a private key; None where none was given.

    Raises:
        IdentityFileError: it cannot be read.
    """
    if path is None:
        return None
    path = here / path
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise IdentityFileError(path, error.strerror or str(error)) from error
