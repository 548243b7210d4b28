"""`horovod.run()`: Horovod's parameters, in its order, with its errors and warnings, for `hvdrun.run()`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hvdrun.cluster.cluster import run_once
from hvdrun.cluster.keywords import Request
from hvdrun.errors import HvdrunError, UsageError

ResultT = TypeVar("ResultT")
_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated"
)
_FRAMES_TO_CALLER = 3  # how many frames the caller of `run` is above `_rename`


def run(
    func: Callable[..., ResultT],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[ResultT]:
    """Run a function on `num_proc` workers (1 unless given), and return what it returns on each of them, by rank.

    An elastic job (min_num_proc, or a discovery script) returns the first min_num_proc results. The parameters for MPI
    and for Horovod's cache have no effect.

    Raises:
        ValueError: the parameters contradict each other, or the job is impossible.
        RuntimeError: the job failed; its cause is the exception of the function.
    """
    del disable_cache
    num_proc = _rename(num_proc, np, "np", "num_proc")
    min_num_proc = _rename(min_num_proc, min_np, "min_np", "min_num_proc")
    max_num_proc = _rename(max_num_proc, max_np, "max_np", "max_num_proc")
    network_interfaces = _rename(network_interfaces, network_interface, "network_interface", "network_interfaces")

    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if use_mpi or mpi_args:
        warnings.warn(
            "use_mpi and mpi_args have no effect: the workers use gloo or NCCL.", stacklevel=_FRAMES_TO_CALLER - 1
        )

    is_elastic = min_num_proc is not None or host_discovery_script is not None
    if not is_elastic:
        max_num_proc = reset_limit = cooldown_range = None
    if host_discovery_script is None:
        slots = None
    given: dict[str, object] = {
        "num_proc": num_proc or 1,
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        "slots_per_host": slots,
        "reset_limit": reset_limit,
        "blacklist_cooldown_range": cooldown_range,
        "hosts": hosts,
        "hostfile": hostfile,
        "host_discovery_script": host_discovery_script,
        "start_timeout": start_timeout,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "verbose": bool(verbose),
        "network_interfaces": _join(network_interfaces),
        "output_filename": output_filename,
    }

    try:
        request = Request(given, executable=executable)
    except UsageError as error:
        raise ValueError(str(error)) from error
    try:
        results = run_once(request, func, args, kwargs or {})
    except HvdrunError as error:
        raise RuntimeError(f"{_FAILED}: {error}") from error
    except Exception as error:
        raise RuntimeError(f"{_FAILED}: {type(error).__name__}: {error}") from error

    if is_elastic:
        return results[: min_num_proc or num_proc or 1]
    return results


def _rename(value: Any, deprecated: Any, old: str, new: str) -> Any:
    """The value of a parameter that has been renamed."""
    if deprecated is None:
        return value
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=_FRAMES_TO_CALLER)
    if value is not None:
        raise ValueError(f"{old} and {new} are the same: give only {new}.")
    return deprecated


def _join(interfaces: Sequence[str] | str | None) -> str | None:
    if interfaces is None or isinstance(interfaces, str):
        return interfaces
    return ",".join(interfaces)
