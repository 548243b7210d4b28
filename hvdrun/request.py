"""Makes a job of what the options say, and completes a request that lacks the number of workers."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hvdrun.discovery import discover_hosts
from hvdrun.elastic_request import choose_elasticity
from hvdrun.elasticity import DEFAULT_LEASE_SECONDS, Elasticity
from hvdrun.errors import IdentityFileError, UsageError
from hvdrun.flags import find_command
from hvdrun.forwarding import choose_forwarded
from hvdrun.hosts import HostList
from hvdrun.jobspec import DEFAULT_LEASE_SECONDS as STATIC_LEASE_SECONDS
from hvdrun.jobspec import JobSpec, SshOptions
from hvdrun.mapping import map_workers
from hvdrun.masking import mask_command

LONGEST_EXAMPLE = 120  # characters; a longer command line is not repeated in an error

_NO_MPI = "-mca has no effect: there is no MPI underneath, the workers talk through gloo or NCCL"
_MCA_REMEDIES = {  # settings of Open MPI that have an option here
    "btl_tcp_if_include": "--network-interfaces",
    "oob_tcp_if_include": "--network-interfaces",
    "plm_rsh_args": "-p, -i and ~/.ssh/config",
}


def make_spec(values: Mapping[str, Any], command: tuple[str, ...], own: Mapping[bytes, bytes]) -> JobSpec:
    """Turn the options' values, by dest, into a job.

    Args:
        values: all of them, as `Option.read` reads them; "size" has one.
        command: the user's.
        own: the environment of hvdrun.

    Raises:
        HvdrunError: the job is impossible, or names what does not exist.
    """
    size: int = values["size"]
    elasticity = choose_elasticity(values)
    listed = list_hosts(values, elasticity)
    here = find_directory()
    directory = here / (values["directory"] or "")
    forwarded = choose_forwarded(values["forwarded"], own)
    if values["directory"] is not None:
        forwarded.setdefault(b"PWD", os.fsencode(directory))
    return JobSpec(
        command=command,
        size=size,
        hosts=map_workers(listed.hosts, size, values["map_by"], oversubscribe=values["oversubscribe"]),
        directory=directory,
        elasticity=elasticity,
        remote_python=values["remote_python"],
        remote_prefix=values["remote_prefix"],
        ssh=SshOptions(
            port=values["ssh_port"],
            identity_file=find_identity_file(values["ssh_identity_file"], here),
            accept_new=values["ssh_accept_new"],
        ),
        users=listed.users,
        interfaces=tuple(dict.fromkeys(name for names in values["interfaces"] for name in names)),
        forwarded=forwarded,
        bind_to=values["bind_to"],
        start_timeout_seconds=values["start_timeout_seconds"],
        lease_seconds=values["lease_seconds"] or (DEFAULT_LEASE_SECONDS if elasticity else STATIC_LEASE_SECONDS),
        launcher_timeout_seconds=values["launcher_timeout_seconds"],
        grace_seconds=values["grace_seconds"],
        stdin_rank=values["stdin_rank"],
        prefork=not values["no_prefork"],
        backend=values["backend"],
        horovod_shim=values["horovod_shim"],
        marks_ranks=not values["no_prefix"],
        marks_times=values["marks_times"],
        verbose=values["verbose"],
        dry_run=values["dry_run"],
        remarks=explain_mca(values["mca"]),
    )


def list_hosts(values: Mapping[str, Any], elasticity: Elasticity | None) -> HostList:
    """The hosts of the job, as far as they are known; none yet where a script names them.

    Raises:
        HvdrunError: they cannot be read.
    """
    if elasticity is not None and elasticity.script is not None:
        return HostList((), {})
    return discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=values["size"])


def complete(words: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command line as it would be with -np: a bare number, all slots of the given hosts, or two workers."""
    size, start = 2, find_command(words)
    if words[start : start + 1] and words[start].isdecimal():  # as in `hvdrun 4 python train.py`
        size, words = int(words[start]), [*words[:start], *words[start + 1 :]]
    elif values["hosts"] is not None or values["hostfile"] is not None:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=size)
        size = sum(host.slots for host in listed.hosts)
    typed = shlex.join(mask_command(words))
    is_shown = start < len(words) and typed.isprintable() and len(typed) <= LONGEST_EXAMPLE
    return f"hvdrun -np {size} {typed if is_shown else 'python train.py'}"


def explain_mca(settings: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What to say of -mca, once, and where hvdrun has a word of its own for what it sets."""
    if not settings:
        return ()
    remedies = dict.fromkeys(f"{_MCA_REMEDIES[name]} for {name}" for name, _ in settings if name in _MCA_REMEDIES)
    return (f"{_NO_MPI}{'; there is ' if remedies else ''}{', '.join(remedies)}.",)


def find_directory() -> Path:
    """The working directory, as the user's shell names it: behind a symbolic link other hosts may have another path.

    Raises:
        UsageError: it was removed.
    """
    try:
        physical = Path.cwd()
    except OSError as error:
        raise UsageError("the working directory does not exist any more: change to one that does.") from error
    named = Path(os.environ.get("PWD", ""))
    with suppress(OSError):
        if named.is_absolute() and named.samefile(physical):
            return named
    return physical


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
