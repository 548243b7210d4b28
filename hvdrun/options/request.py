"""Makes a job of the options' values, and completes a command line that lacks the number of workers."""

import os
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from hvdrun.allocation.found import find_allocation
from hvdrun.errors import UsageError
from hvdrun.options.conflicts import (
    ELASTIC,
    check_timeline,
    choose_elasticity,
    choose_joining,
    explain_detachment,
    find_idle,
)
from hvdrun.options.flags import find_option
from hvdrun.options.option import RawValues
from hvdrun.options.values import Resolved, fill, resolve
from hvdrun.options.words import explain_no_effect, read_words
from hvdrun.spec.command import find_directory
from hvdrun.spec.environment import choose_forwarded
from hvdrun.spec.hosts import HostList, discover_hosts
from hvdrun.spec.jobspec import Display, JobSpec, Workers
from hvdrun.spec.limits import (
    RESTART_LEASE_SECONDS,
    Elasticity,
    Limits,
)
from hvdrun.spec.mapping import map_workers
from hvdrun.spec.redaction import redact_command
from hvdrun.spec.remote import Allocation, Remote
from hvdrun.spec.suggestions import suggest_interpreter
from rendezvous.bootstrap import HOROVOD_VARIABLES, JOB, TORCH_VARIABLES
from rendezvous.core.messages import Level
from rendezvous.core.model import DEFAULT_LEASE_SECONDS, ELASTIC_LEASE_SECONDS

LONGEST_EXAMPLE = 120  # characters; an error does not repeat a longer command line

_NO_MPI = "-mca has no effect: there is no MPI underneath, the workers talk through gloo or NCCL"
_MCA_REMEDIES = {  # settings of Open MPI that have an option here
    "btl_tcp_if_include": "--network-interfaces",
    "oob_tcp_if_include": "--network-interfaces",
    "plm_rsh_agent": "--rsh",
    "plm_rsh_args": "-p, -i and ~/.ssh/config",
}


def make_job(
    typed: Mapping[str, RawValues],
    command: tuple[str, ...],
    environment: Mapping[str, str],
    choose_size: Callable[[Mapping[str, Any]], int],
    *,
    like_horovod: bool = False,
) -> JobSpec:
    """Make a job of the command line, and of the configuration file that it names; write a file if it asks for one.

    Args:
        typed: the values on the command line, by dest.
        command: the user's; empty to take that of the file.
        environment: the environment of hvdrun.
        choose_size: returns the number of workers that neither an option nor an allocation gives, or raises an error.
        like_horovod: only remark on options and keys that have no effect, as Horovod does, instead of refusing them.

    Raises:
        HvdrunError: the job is impossible, or names something that does not exist.
    """
    resolved, filed_command, remarks = _resolve(typed, environment, like_horovod=like_horovod)
    command = command or filed_command
    values = dict(resolved.values)
    allocation = _choose_allocation(values, environment)
    if allocation is not None:
        values["size"] = values["size"] or allocation.slots
        if allocation.script is not None:
            values["script"] = allocation.script
            values["slots_per_host"] = values["slots_per_host"] or max(host.slots for host in allocation.hosts)
    values["size"] = values["size"] or choose_size(values)
    own = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    spec = _make_spec(values, command, own, allocation, remarks)
    if values["write_config"] is not None:
        from hvdrun.options.configuration import write_configuration  # noqa: PLC0415 - few jobs write one

        of_elastic_jobs = ()
        if spec.limits.elasticity is None:
            of_elastic_jobs = set(ELASTIC) - values["typed"]
        write_configuration(values["write_config"], _leave_out(of_elastic_jobs, resolved.given), command)
    return spec


def _resolve(
    typed: Mapping[str, RawValues], environment: Mapping[str, str], *, like_horovod: bool
) -> tuple[Resolved, tuple[str, ...], tuple[str, ...]]:
    """All options' values, the command of the configuration file, and remarks for the user; see `make_job`.

    Raises:
        HvdrunError: a value or the file cannot be read.
    """
    remarks: list[str] = []
    command: tuple[str, ...] = ()
    filed: dict[str, RawValues] = {}
    sources: Mapping[str, str] = {}
    if "config_file" in typed:
        from hvdrun.options.configuration import read_configuration  # noqa: PLC0415 - few jobs have a file

        found = read_configuration(str(typed["config_file"]), ignores_unknown=like_horovod)
        filed, sources, command = found.given, found.sources, found.command
        remarks.extend(found.remarks)
    resolved = resolve(typed, filed, environment, sources)
    if like_horovod and (idle := find_idle(resolved.values)):
        resolved = resolve(_leave_out(idle, typed), _leave_out(idle, filed), environment, sources)
        remarks.append(explain_no_effect(idle.values(), "the workers of this job stay the same"))
    return resolved, command, tuple(remarks)


def _leave_out(dests: Container[str], given: Mapping[str, RawValues]) -> dict[str, RawValues]:
    """The given values without those of some options."""
    return {dest: value for dest, value in given.items() if dest not in dests}


def _choose_allocation(values: Mapping[str, Any], environment: Mapping[str, str]) -> Allocation | None:
    """The allocation of a scheduler that the job uses; None for named hosts, and within a worker of another job.

    Raises:
        HvdrunError: the scheduler's variables or files cannot be read.
    """
    if values["wait_for_agents"] or any(values[dest] is not None for dest in ("hosts", "hostfile", "script")):
        return None
    found = None
    if JOB not in environment:
        found = find_allocation(environment, is_elastic=values["min_size"] is not None)
    if found is None:
        return None
    return found.fit(values["size"])


def _make_spec(
    values: Mapping[str, Any],
    command: tuple[str, ...],
    own: Mapping[bytes, bytes],
    allocation: Allocation | None,
    remarks: tuple[str, ...],
) -> JobSpec:
    """Make a job of the options' values by dest: an option gives the field that its dest names.

    Args:
        values: the values of all options, as `Option.read` returns them; "size" is not None.
        command: the user's.
        own: the environment of hvdrun.
        allocation: the hosts that a scheduler has given to the job.
        remarks: what the user should know about the request.

    Raises:
        HvdrunError: the job is impossible, or names something that does not exist.
    """
    elasticity, joining = choose_elasticity(values), choose_joining(values)
    if joining is not None or (elasticity is not None and elasticity.script is not None):
        listed = HostList((), {})  # they are not known yet
    elif allocation is not None:
        listed = HostList(allocation.hosts, {})
    else:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=values["size"])

    lease_seconds = values["lease_seconds"] or _choose_lease(elasticity)
    interfaces = tuple(dict.fromkeys(name for names in values["interfaces"] for name in names))
    described: tuple[str, ...] = ()
    if allocation is not None:
        described = (allocation.describe(),)

    spec = JobSpec(
        _make_workers(values, command, own, listed),
        fill(Limits, values, lease_seconds=lease_seconds, elasticity=elasticity),
        fill(
            Remote,
            values,
            hosts=frozenset(),
            users=listed.users,
            interfaces=interfaces,
            allocation=allocation,
            joining=joining,
        ),
        fill(
            Display,
            values,
            log_level=Level(values["log_level"].value),
            remarks=(
                *explain_mca(values["mca"]),
                *explain_detachment(values),
                *described,
                *remarks,
                *_explain_launcher(command, values["size"]),
            ),
        ),
    )
    overridden = _explain_overridden(values["forwarded"], spec)
    return replace(spec, display=replace(spec.display, remarks=(*overridden, *spec.display.remarks)))


def _explain_overridden(requests: Sequence[str], spec: JobSpec) -> tuple[str, ...]:
    """A remark on variables of -x that all workers get with another value; none without one. A pattern names none."""
    named = dict.fromkeys(request.partition("=")[0] for request in requests)
    variables, forwarded = spec.variables, spec.workers.forwarded
    flags = [
        f"-x {name}"
        for name in named
        if (key := os.fsencode(name)) in forwarded
        and (name in {*HOROVOD_VARIABLES, *TORCH_VARIABLES} or variables[key] != forwarded[key])
    ]
    if not flags:
        return ()
    return (explain_no_effect(flags, "hvdrun chooses this for the workers, by its options and their ranks"),)


def _choose_lease(elasticity: Elasticity | None) -> float:
    if elasticity is None:
        return DEFAULT_LEASE_SECONDS
    if elasticity.restarts.limit:
        return RESTART_LEASE_SECONDS
    return ELASTIC_LEASE_SECONDS


def _make_workers(
    values: Mapping[str, Any], command: tuple[str, ...], own: Mapping[bytes, bytes], listed: HostList
) -> Workers:
    hosts = map_workers(listed.hosts, values["size"], values["map_by"], oversubscribe=values["oversubscribe"])
    forwarded = choose_forwarded(values["forwarded"], own)
    check_timeline(values, {*own, *forwarded})
    directory = values["directory"] or find_directory()
    return fill(Workers, values, command=command, hosts=hosts, directory=directory, forwarded=forwarded)


def starts_torchrun(command: tuple[str, ...]) -> bool:
    """Whether the command starts torchrun."""
    name = command[0].rpartition("/")[2] if command else ""
    return name == "torchrun" or command[1:3] in {("-m", f"torch.distributed.{word}") for word in ("run", "launch")}


def _starts_accelerate(command: tuple[str, ...]) -> bool:
    name = command[0].rpartition("/")[2] if command else ""
    modules = {("-m", f"accelerate.commands.{word}") for word in ("launch", "accelerate_cli")}
    return name == "accelerate-launch" or (name, *command[1:2]) == ("accelerate", "launch") or command[1:3] in modules


def _explain_launcher(command: tuple[str, ...], size: int) -> tuple[str, ...]:
    """Say that several launchers make several worlds, unless torchruns are told of each other."""
    if size == 1:
        return ()
    if _starts_accelerate(command):
        remark = f"accelerate launch in each of the {size} workers may start workers that know nothing of the others"
        return (f"{remark}: write python in its place, as in hvdrun -np {size} python train.py",)
    if not starts_torchrun(command) or any(word.startswith("--nnodes") for word in command):
        return ()
    remark = f"each of the {size} workers starts a torchrun, which knows nothing of the others: they train alone"
    return (f"{remark}; hvdrun torchrun starts one world, and needs no -np",)


def refuse_missing_size(example: str) -> NoReturn:
    """Refuse a job without a number of workers.

    Message: the number of workers is missing: give it before the command (see hvdrun --help), as in COMMAND.
    Cause: The command line has no `-np`, and no allocation of a scheduler says how many slots there are.
    Remedy: Add `-np`.

    Raises:
        UsageError: always; it shows this command line.
    """
    raise UsageError(
        f"the number of workers is missing: give it before the command (see hvdrun --help), as in {example}."
    )


_SIZES = frozenset({"-np", "-n", "--num-proc", "--np"})


def complete(words: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command line with -np: for a bare number, for all slots of the given hosts, or for two workers."""
    size, start = 2, read_words(words, find_option)[1]
    # As in `hvdrun 4 python train.py`.
    if words[start : start + 1] and words[start].isdecimal():
        size, words = int(words[start]), [*words[:start], *words[start + 1 :]]
    elif values["hosts"] is not None or values["hostfile"] is not None:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=size)
        size = sum(host.slots for host in listed.hosts)
    else:
        # Perhaps behind the command, as in `hvdrun python train.py -np 4`.
        pairs = enumerate(pairwise(words[start:]), start)
        behind = next((at for at, (flag, number) in pairs if flag in _SIZES and number.isdecimal()), None)
        if behind is not None:
            size, words = int(words[behind + 1]), [*words[:behind], *words[behind + 2 :]]
            first = _find_misplaced(words, start, behind)
            words, start = [*words[first:], *words[:first]], start + len(words) - first

    if words[start : start + 1] and "/" not in words[start] and (meant := suggest_interpreter(words[start])):
        words = [*words[:start], *meant.split(" ", 1), *words[start + 1 :]]
    typed = shlex.join(redact_command(words))
    is_shown = start < len(words) and typed.isprintable() and len(typed) <= LONGEST_EXAMPLE
    return f"hvdrun -np {size} {typed if is_shown else 'python train.py'}"


def _find_misplaced(words: Sequence[str], start: int, size: int) -> int:
    """Where hvdrun's options begin that end a command line around its -np, which was removed; its end without any."""
    for at in range(start + 1, size + 1):
        with suppress(UsageError):  # the program's own options
            if read_words(words[at:], find_option)[1] == len(words) - at:
                return at
    return len(words)


def explain_mca(settings: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A remark on -mca, which names the options of hvdrun that replace its settings; none without a setting."""
    if not settings:
        return ()
    remedies = dict.fromkeys(f"{_MCA_REMEDIES[name]} for {name}" for name, _ in settings if name in _MCA_REMEDIES)
    return (f"{_NO_MPI}{'; there is ' if remedies else ''}{', '.join(remedies)}.",)
