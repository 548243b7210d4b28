"""The plan of a job for `--dry-run`, which starts nothing: the place and the environment of each worker."""

import os
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdrun.agent.spawn import find_executable
from hvdrun.errors import TooFewSlotsNowError
from hvdrun.processes import python_command
from hvdrun.processes.binding import BindTo
from hvdrun.processes.python_command import PythonCommand
from hvdrun.shim.path import prepend_shim
from hvdrun.spec.environment import choose_environment
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.redaction import redact_command, redact_script, redact_value
from hvdrun.version import __version__
from rendezvous.bootstrap import (
    ERROR_FILE,
    JOB,
    SNAPSHOT_DIR,
    SNAPSHOT_FD,
    SOCKET,
    VERSION,
    Bootstrap,
    horovod_environment,
    read_may_restart,
    torch_environment,
)
from rendezvous.core.messages import TooFewSlotsError
from rendezvous.core.model import LOOPBACK, Assignment, Endpoint, Restarts, Round, Slot, Worker, rank

LATER = "(chosen at the start)"
THERE = "(looked for there)"
THIS_MACHINE = "this machine"
_SHIM_THERE = b"(the shim there)"
_MASTER_PORT = "MASTER_PORT"
_TITLES = ("rank", "local_rank", "cross_rank", "host", "slot")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: its slot, its ranks, and the variables that other workers of the host do not share."""

    slot: Slot
    assignment: Assignment
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The workers of one host.

    way: how hvdrun reaches the host.
    agent: the Python of its agent, and the commands before it; None on this machine.
    command: the words that the workers execute. program: the file that they execute.
    start: whether workers are forked, and the reason.
    bound_to: the CPUs to which each worker is bound.
    environment: the variables that hvdrun adds or changes for all of them. removed: the variables that it removes.
    """

    host: str
    way: str
    agent: str | None
    command: tuple[str, ...]
    program: str
    start: str
    bound_to: str
    environment: Mapping[str, str]
    removed: tuple[str, ...]
    workers: tuple[WorkerPlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A job by host.

    limits: the limits of an elastic job, or of one that restarts, each a name and a value; empty for a static one.
    is_elastic: it continues without a lost worker.
    """

    directory: Path
    hosts: tuple[HostPlan, ...]
    limits: tuple[tuple[str, str], ...] = ()
    is_elastic: bool = False


def make_plan(spec: JobSpec, own: Mapping[bytes, bytes]) -> Plan:
    """Plan a job that `hvdrun.hosts.preparation` has prepared; `own` is the environment of hvdrun.

    Raises:
        HvdrunError: the job could not be started.
    """
    try:
        placement = spec.place()
    except TooFewSlotsError as error:
        raise TooFewSlotsNowError(error.offered, spec.workers.size) from error
    assignments = dict(zip(placement, rank(placement), strict=True))
    hosts = dict.fromkeys(slot.host for slot in placement)
    return Plan(
        spec.workers.directory,
        tuple(
            _plan_host(spec, own, host, {slot: numbers for slot, numbers in assignments.items() if slot.host == host})
            for host in hosts
        ),
        _explain_limits(spec),
        spec.continues_in_place,
    )


def explain_way(spec: JobSpec, host: str) -> str:
    """How hvdrun would reach a host, without the settings in ~/.ssh/config."""
    if not spec.is_remote(host):
        return THIS_MACHINE
    remote = spec.remote
    if host in remote.here:
        return f"{THIS_MACHINE}, behind the agent's prefix"
    if remote.rsh:
        return f"by {_quote(shlex.join(redact_command(remote.rsh)))}"
    if remote.allocation is not None and host in remote.allocation.steps:
        return f"as a step of {remote.allocation.name}"
    user = f" as {remote.users[host]}" if host in remote.users else ""
    port = "" if remote.ssh_port is None else f", port {remote.ssh_port}"
    key = "" if remote.ssh_identity_file is None else f", with the key {_quote(str(remote.ssh_identity_file))}"
    return f"over SSH{user}{port}{key}"


def explain_start(spec: JobSpec, words: tuple[str, ...], environment: Mapping[bytes, bytes]) -> str:
    """Whether workers of this command would be forked, or why not, as far as this machine shows."""
    command = python_command.parse(words)
    if not spec.workers.prefork:
        return "executed (--no-prefork)"
    if command is None:
        return "executed (not a plain Python command)"
    texts = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    if (variable := python_command.find_thread_variable(texts)) is not None:
        return f"executed ({variable} is set)"
    if (variable := _find_early_variable(spec.workers.directory, command)) is not None:
        return f"executed (the script names {variable}, which must be set before the imports)"
    return "forked if the interpreter has what forking needs, otherwise executed"


def render_plan(plan: Plan) -> str:
    """The plan as text, without secrets and without a newline at its end."""
    return "\n".join(_compose_plan(plan))


def _plan_host(
    spec: JobSpec, own: Mapping[bytes, bytes], host: str, assignments: Mapping[Slot, Assignment]
) -> HostPlan:
    is_remote = spec.is_remote(host)
    command = spec.command_on(host)
    prefixed = spec.remote.leaves_paths
    chosen = choose_environment(own, len(assignments), remote=is_remote, prefixed=prefixed, forwarded=spec.variables)

    agent, program, base = None, THERE, own
    if is_remote:
        agent, base = _explain_agent(spec), dict[bytes, bytes]()
        chosen = prepend_shim(chosen, _SHIM_THERE)
    else:
        chosen = prepend_shim(chosen)
        program = find_executable(command[0], str(spec.workers.directory), chosen)

    environments = {slot: _name_variables(spec, chosen, slot, numbers) for slot, numbers in assignments.items()}
    first, *others = environments.values()
    shared = {name for name, value in first.items() if all(other[name] == value for other in others)}
    added = {os.fsdecode(name): os.fsdecode(value) for name, value in chosen.items() if base.get(name) != value}
    removed = [os.fsdecode(name) for name in sorted(base.keys() - chosen.keys())]

    return HostPlan(
        host=host,
        way=explain_way(spec, host),
        agent=agent,
        command=command,
        program=program,
        start=explain_start(spec, command, chosen),
        bound_to=_explain_binding(spec.workers.bind_to),
        environment=added | {name: value for name, value in first.items() if name in shared},
        removed=tuple(name for name in removed if name not in first),
        workers=tuple(
            WorkerPlan(slot, numbers, {name: value for name, value in environments[slot].items() if name not in shared})
            for slot, numbers in assignments.items()
        ),
    )


def _explain_agent(spec: JobSpec) -> str:
    prefix = f", after {_quote(redact_script(spec.remote.prefix))}" if spec.remote.prefix else ""
    wrapper = f", in {_quote(shlex.join(redact_command(spec.remote.agent_prefix)))}" if spec.remote.agent_prefix else ""
    return f"{_quote(spec.remote.interpreter)}{prefix}{wrapper}"


def _explain_binding(bind_to: str) -> str:
    return {str(BindTo.NONE): "nothing", str(BindTo.NUMA): "a NUMA node each"}.get(bind_to, f"a {bind_to} each")


def _name_variables(spec: JobSpec, chosen: Mapping[bytes, bytes], slot: Slot, assignment: Assignment) -> dict[str, str]:
    """The variables of one worker that its agent sets, beside the chosen ones."""
    address = LOOPBACK
    if spec.remote.hosts:
        address = LATER

    bootstrap = Bootstrap(
        job=LATER,
        socket=Path(LATER),
        worker=Worker(slot, 1),
        address=address,
        start_timeout_seconds=spec.limits.start_timeout_seconds,
        lease_seconds=spec.limits.lease_seconds,
        server_timeout_seconds=spec.limits.effective_server_timeout_seconds if spec.display.detach else 0.0,
    )
    environment = bootstrap.environment() | horovod_environment(assignment, slot.host, elastic=spec.continues_in_place)

    hosts = tuple(dict.fromkeys(each.host for each in spec.place()))
    first = Round(0, hosts.index(slot.host), len(hosts))
    environment |= torch_environment(assignment, first, Endpoint(address, 0), LATER)
    environment[VERSION] = __version__
    later = [JOB, SOCKET, _MASTER_PORT, ERROR_FILE]
    if read_may_restart(environment | {os.fsdecode(name): os.fsdecode(value) for name, value in chosen.items()}):
        later.append(SNAPSHOT_FD)
        if len(hosts) == 1 and os.fsencode(SNAPSHOT_DIR) not in chosen:
            later.append(SNAPSHOT_DIR)
    return environment | dict.fromkeys(later, LATER)


def _explain_limits(spec: JobSpec) -> tuple[tuple[str, str], ...]:
    """The limits of an elastic job, or of one that restarts."""
    elasticity = spec.limits.elasticity
    if elasticity is None:
        return ()

    most = "all slots" if elasticity.max_size is None else str(elasticity.max_size)
    recovery = elasticity.recovery
    resets = "without a limit" if recovery.reset_limit is None else f"at most {recovery.reset_limit} times"
    least_seconds, most_seconds = recovery.cooldown_seconds
    workers = f"{elasticity.min_size} to {most}, at the start at least {spec.workers.size}"

    return (
        ("workers", workers if spec.continues_in_place else f"always {spec.workers.size}"),
        ("hosts", "fixed" if elasticity.script is None else f"from {_quote(elasticity.script)}, as it prints them now"),
        *((("resets", resets),) if spec.continues_in_place else ()),
        ("restarts", _describe_restarts(elasticity.restarts)),
        ("lease", f"{spec.limits.lease_seconds:g} s"),
        ("timeout", f"{recovery.elastic_timeout_seconds:g} s without enough slots"),
        ("cooldown", f"{least_seconds:g} to {most_seconds:g} s for a host that failed"),
    )


def _describe_restarts(restarts: Restarts) -> str:
    """How often all workers are started again."""
    if restarts.limit is None:
        return "of all workers, where they are a world of torch.distributed"
    return f"of all workers, at most {restarts.limit}" if restarts.limit else "none"


def _find_early_variable(directory: Path, command: PythonCommand) -> str | None:
    """See `python_command.find_early_variable`; None if the text of the program cannot be read."""
    for source in python_command.list_sources(command):
        with suppress(OSError):  # there is no such file, or the interpreter reports the error
            return python_command.find_early_variable((directory / source).read_bytes())
    return None


def _compose_plan(plan: Plan) -> Iterator[str]:
    yield "--dry-run: nothing is started. The placement:"
    yield ""
    yield from _compose_table(
        [
            _TITLES,
            *(
                (
                    str(worker.assignment.rank),
                    str(worker.assignment.local_rank),
                    str(worker.assignment.cross_rank),
                    worker.slot.host,
                    str(worker.slot.index),
                )
                for host in plan.hosts
                for worker in host.workers
            ),
        ]
    )

    if plan.limits:
        yield ""
        what = "The job is elastic" if plan.is_elastic else "After a loss all workers are started again"
        yield f"{what}; these are its first workers, and their first ranks:"
        yield from (f"  {name:<9}  {value}" for name, value in plan.limits)

    for host in plan.hosts:
        yield ""
        yield f"{host.host}: {host.way}"
        if host.agent is not None:
            yield f"  agent      {host.agent}"
        yield f"  command    {' '.join(map(_quote, redact_command(host.command)))}"
        yield f"  program    {host.program if host.program == THERE else _quote(host.program)}"
        yield f"  directory  {_quote(str(plan.directory))}"
        yield f"  start      {host.start}"
        yield f"  bound to   {host.bound_to}"

        whose = "its own environment" if host.agent is None else "the environment of a login there"
        yield f"  what hvdrun adds to {whose}, or changes there:"
        yield from (f"    {pair}" for pair in _compose_variables(host.environment))
        yield from (f"    {_quote(name)} is removed" for name in host.removed)
        if len(host.workers) > 1:
            for worker in host.workers:
                yield f"    rank {worker.assignment.rank}: {' '.join(_compose_variables(worker.environment))}"


def _compose_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _compose_variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield f"{_quote(name)}={value if value == LATER else _quote(redact_value(name, value))}"


def _quote(word: str) -> str:
    """The word as a shell reads it, on one line and without control characters."""
    if word.isprintable():
        return shlex.quote(word)
    kept = string.ascii_letters + string.digits + string.punctuation.replace("'", "").replace("\\", "") + " "
    return "$'" + "".join(chr(byte) if chr(byte) in kept else f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"
