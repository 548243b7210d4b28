"""Completes the specification of a job before it starts: which hosts are remote, and what the workers execute.

If workers run on this machine, what they need is checked here.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from hvdrun.errors import DirectoryNotFoundError, LaunchError, OtherUserError
from hvdrun.spec.command import (
    LookupContext,
    choose_agent_interpreter,
    find_on_path,
    is_plain_python,
    pin_python,
    resolve_command,
)
from hvdrun.spec.hosts import LOCALHOST, HostList
from hvdrun.spec.jobspec import JobSpec, Workers
from hvdrun.startup.paths import exists, find_fault, is_file, is_folder
from hvdrun.transport.user import name_user

_DYNAMIC = "DYNAMIC"  # in place of a file: the program calls start_timeline()
_LOOKUPS = 32  # at the same time: a name that no server knows takes seconds

IsLocal = Callable[[str], bool]


def prepare(spec: JobSpec, context: LookupContext, is_local: IsLocal | None = None) -> tuple[JobSpec, tuple[str, ...]]:
    """The job with its commands and its remote side, and the sentences that -v prints about it.

    Args:
        spec: the job as the user has requested it.
        context: where commands are looked for.
        is_local: whether a host is this machine; `hvdrun.hosts.reach.is_local` unless given.

    Raises:
        HvdrunError: on this machine something is missing that its workers need.
    """
    spec = replace(spec, workers=replace(spec.workers, hosts=spec.usable_hosts))
    used = tuple(host.name for host in spec.workers.hosts)

    is_local = _knows_here(spec) or is_local
    remote = find_remote(used, is_local)
    here = frozenset[str]()
    if spec.remote.agent_prefix:
        here = frozenset(used) - remote
    remote |= here
    local = [host for host in used if host not in remote]

    if not remote and not spec.discovers:
        check_here(spec, local)
        command = resolve_command(spec.workers.command, context)
        return replace(spec, workers=replace(spec.workers, command=command)), explain_interpreter(
            spec, command, context
        )

    workers = spec.workers
    command = pin_python(workers.command, context)
    if local:
        check_here(spec, local)
        command = resolve_command(command, context)

    command_there = command
    if spec.remote.python and is_plain_python(workers.command):
        command_there = (spec.remote.python, *command[1:])
    side = replace(
        spec.remote,
        hosts=remote,
        command=command_there,
        interpreter=choose_agent_interpreter(workers.command, context, spec.remote.python),
        here=here,
    )

    prepared = replace(spec, workers=replace(workers, command=command), remote=side)
    if spec.remote.joining is not None:
        return prepared, explain_interpreter(spec, command, context)
    names = ", ".join(host for host in used if host in remote) or "none so far"
    remark = f"not this machine: {names}; the agents there are started with {side.interpreter}"
    return prepared, (*explain_interpreter(spec, command, context), remark)


def add_hosts(spec: JobSpec, found: HostList, context: LookupContext, is_local: IsLocal | None = None) -> JobSpec:
    """The job with the hosts that its script names now, completed as `prepare` does it.

    A name is looked up once; a host keeps the user with which it was named first.

    Raises:
        HvdrunError: some are this machine, and here something is missing that their workers need.
    """
    known = {host.name for host in spec.workers.hosts} | spec.remote.hosts
    new = [host.name for host in found.hosts if host.name not in known]
    remote = find_remote(new, is_local)
    here = frozenset[str]()
    if spec.remote.agent_prefix:
        here = frozenset(new) - remote
    remote |= here

    spec = replace(
        spec,
        workers=replace(spec.workers, hosts=found.hosts),
        remote=replace(
            spec.remote,
            hosts=spec.remote.hosts | remote,
            here=spec.remote.here | here,
            users={**found.users, **spec.remote.users},
        ),
    )

    if local := [host for host in new if host not in remote]:
        check_here(spec, local)
        workers = replace(spec.workers, command=resolve_command(spec.workers.command, context))
        spec = replace(spec, workers=workers)
    return spec


def _knows_here(spec: JobSpec) -> IsLocal | None:
    """With a scheduler, its allocation tells which host is this machine: its names need no address."""
    allocation = spec.remote.allocation
    if allocation is None or not allocation.steps:
        return None
    return lambda host: host == allocation.here


def find_remote(hosts: Iterable[str], is_local: IsLocal | None = None) -> frozenset[str]:
    """The hosts that are not this machine; all names are looked up at the same time."""
    named = [host for host in hosts if host != LOCALHOST]  # the usual case, which needs no import
    if not named:
        return frozenset()
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a job on localhost does without it

    if is_local is None:
        from hvdrun.hosts import reach  # noqa: PLC0415 - a job on localhost does without it

        is_local = reach.is_local
    with ThreadPoolExecutor(min(_LOOKUPS, len(named))) as lookups:
        answers = lookups.map(is_local, named)
        return frozenset(host for host, is_here in zip(named, answers, strict=True) if not is_here)


def check_here(spec: JobSpec, hosts: Collection[str]) -> None:
    """Check what workers on this machine, under these names, need.

    Raises:
        DirectoryNotFoundError: the working directory does not exist, or is no folder, or is closed to this user.
        OtherUserError: the host is named with another user.
        LaunchError: the file of the timeline cannot be written.
    """
    for host in hosts:
        user = spec.remote.users.get(host)
        if user is not None and user != (own := name_user()):
            raise OtherUserError(host, user, own)
    directory = spec.workers.directory
    if (fault := find_fault(directory)) is not None:
        raise DirectoryNotFoundError(directory, fault)
    if spec.workers.hosts and spec.workers.hosts[0].name in hosts:  # rank 0 is there
        check_timeline(spec.workers)


def check_timeline(workers: Workers) -> None:
    """Check the file of `--timeline`, which rank 0 is to write on this machine.

    Raises:
        LaunchError: it cannot be written.
    """
    if workers.timeline is None or workers.timeline.upper() == _DYNAMIC:
        return
    path = workers.directory / workers.timeline
    fault = ""
    if is_folder(path):
        fault = os.strerror(errno.EISDIR)
    elif exists(path) and not is_file(path):
        fault = "it is no regular file"
    elif not is_folder(path.parent) or not os.access(path if exists(path) else path.parent, os.W_OK):
        fault = _hear_refusal(path)
    if fault:
        raise LaunchError(f"{str(path)!r} of --timeline cannot be written: {fault}; name another file.")


def _hear_refusal(path: Path) -> str:
    """The system's words for a file that this user may not write: os.access says only that it is so."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    except OSError as error:
        return error.strerror or str(error)
    return ""  # it may be written by now


def explain_interpreter(spec: JobSpec, command: tuple[str, ...], context: LookupContext) -> tuple[str, ...]:
    """Which Python replaces the one that the user has typed, in at most one sentence."""
    if command[0] == spec.workers.command[0]:
        return ()
    if command[0] == context.interpreter and find_on_path(spec.workers.command[0], context) is None:
        return (f"PATH has no {spec.workers.command[0]}: the workers use hvdrun's own interpreter, {command[0]}",)
    return (f"{spec.workers.command[0]} is {command[0]}",)
