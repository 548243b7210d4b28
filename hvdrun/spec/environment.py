"""The environment of workers: on this machine that of hvdrun, with defaults for output and threads.

Another host gets only the variables of -x, the search paths, and the defaults below. They override the environment of a
login on that host, which keeps its HOME, USER and so on.
"""

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from hvdrun.errors import BadValueError, VariableNotSetError
from hvdrun.spec.redaction import REDACTED
from rendezvous.bootstrap import CHECK_NAN, CHECK_REPLICAS

ELASTIC = "HOROVOD_ELASTIC"  # tells the workers and agents whether the job is elastic
THREADS = b"OMP_NUM_THREADS"
_CHECKS = (os.fsencode(CHECK_NAN), os.fsencode(CHECK_REPLICAS))  # the only ones of their prefix that users set
# Slurm sets these for a task; libraries in the workers would take them for the job's.
_OF_ONE_TASK = re.compile(
    rb"SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|NTASKS.*|NPROCS|TASKS_PER_NODE|STEP.*|LAUNCH_NODE_IPADDR|SRUN_.*"
    rb"|CPU_BIND.*|MEM_BIND.*|DISTRIBUTION)|(PMI|PMI2|PMIX)_.*"
)
# In a step it has all CPUs of the agent; workers get the value that the user has requested.
_CPUS_PER_TASK = b"SLURM_CPUS_PER_TASK"
_DEFAULTS = {b"PYTHONUNBUFFERED": b"1", b"PYTHONFAULTHANDLER": b"1"}


def choose_environment(
    own: Mapping[bytes, bytes],
    neighbours: int,
    *,
    remote: bool = False,
    prefixed: bool = False,
    forwarded: Mapping[bytes, bytes] | None = None,
) -> dict[bytes, bytes]:
    """All variables of the workers on a host, without those that differ between them.

    Args:
        own: the environment of hvdrun.
        neighbours: how many workers share the host. If several do, each uses one thread unless the user sets a number,
            as with torchrun: workers that all use all cores are slow.
        remote: the host is not this machine. Its agent overrides its own environment with these variables; see
            `merge_environments`.
        prefixed: a shell command on that host (--remote-prefix) sets the search paths.
        forwarded: variables for all hosts, which override the others.
    """
    if remote:
        environment = _choose_for_another(own, prefixed=prefixed)
    else:
        environment = _choose_for_this(own)
    environment |= forwarded or {}
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    if neighbours > 1:
        environment.setdefault(THREADS, b"1")
    return environment


def merge_environments(login: Mapping[bytes, bytes], chosen: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment of workers on another host: that of its agent, overridden with the chosen variables."""
    return {**{name: value for name, value in _choose_for_this(login).items() if name != _CPUS_PER_TASK}, **chosen}


def _choose_for_this(own: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        name: value
        for name, value in own.items()
        if (not name.startswith(OWN_PREFIX) or name in _CHECKS) and not _OF_ONE_TASK.fullmatch(name)
    }


def _choose_for_another(own: Mapping[bytes, bytes], *, prefixed: bool) -> dict[bytes, bytes]:
    """The variables that all hosts need alike, if hvdrun has them."""
    names = (*_DEFAULTS, THREADS, *_CHECKS, _CPUS_PER_TASK)
    if not prefixed:
        names = (*ALWAYS, *names)
    return {name: own[name] for name in names if name in own}


ALWAYS = (b"PATH", b"PYTHONPATH", b"LD_LIBRARY_PATH", b"VIRTUAL_ENV", b"CONDA_PREFIX")
OWN_PREFIX = b"HVD_"  # of a job that contains this one
_FLAG = "-x"
_WANTED = "a variable whose name is not empty and has no spaces, as in -x NCCL_DEBUG=INFO"
_PATTERN = frozenset("*?[")


def choose_forwarded(requests: Sequence[str], own: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables to forward, with their values; of two requests for one the later counts.

    A pattern may match nothing. A search path, which is always forwarded, need not be set.

    Args:
        requests: the values of -x.
        own: the environment of hvdrun.

    Raises:
        BadValueError: a request is no variable.
        VariableNotSetError: a name without a value is no variable of hvdrun's own environment.
    """
    chosen: dict[bytes, bytes] = {}
    for request in requests:
        name, equals, value = request.partition("=")
        if name.split() != [name] or "\0" in request:
            raise BadValueError(_FLAG, _WANTED, f"{name}{equals}{REDACTED if value else ''}")
        key = os.fsencode(name)
        if equals:
            chosen[key] = os.fsencode(value)
        elif _PATTERN.intersection(name):
            chosen |= _find_matching(name, own)
        elif key in own:
            chosen[key] = own[key]
        elif key not in ALWAYS:
            raise VariableNotSetError(name)
    return chosen


def _find_matching(pattern: str, own: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that match the pattern, without those of a job that contains this one."""
    return {
        name: value
        for name, value in own.items()
        if fnmatchcase(os.fsdecode(name), pattern) and not name.startswith(OWN_PREFIX)
    }


def is_elastic(environment: Mapping[bytes, bytes]) -> bool:
    """The workers of this environment belong to an elastic job."""
    return environment.get(os.fsencode(ELASTIC)) == b"1"
