"""Horovod's helper functions: which backends are built, and functions that have nothing to do with collectives.

Horovod looks for its compiled extensions; here the runtime answers.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Protocol, TypeVar
from warnings import warn

from horovod._modules import find_module

__all__ = [
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

_FRAMEWORKS = ("torch", "mxnet")  # that are served
_VERSION = re.compile(r"\d+(\.\d+)+")
_BOTH_GIVEN = "The op parameter supersedes average. Please provide only one of them."

ItemT = TypeVar("ItemT")
_cache = cache


class ReduceOps(Protocol):
    """An object with the numbers of these two operations."""

    @property
    def Average(self) -> int:  # noqa: N802 - Horovod's name
        """The mean."""

    @property
    def Sum(self) -> int:  # noqa: N802 - Horovod's name
        """The sum."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Horovod works with this framework ("torch") here; `verbose` changes nothing."""
    del verbose
    return ext_base_name in _FRAMEWORKS and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Return where Horovod works with a framework ("horovod.torch"); only the first argument counts.

    Raises:
        ImportError: Horovod does not work with the framework here.
    """
    del ext_env_var, pkg_path, args
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        served = " and ".join(_FRAMEWORKS)
        raise ImportError(
            f"{ext_name} is not available: hvdrun serves {served}, where they are installed", name=ext_name
        )


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework finds a GPU that tensors can be sent from; `verbose` changes nothing."""
    if ext_base_name != "torch" or not extension_available(ext_base_name, verbose):
        return False
    from torch import cuda  # noqa: PLC0415 - a program that does not ask need not wait for it

    return cuda.is_available()


def gloo_built(verbose: bool = False) -> bool:
    """Whether gloo can carry collectives; `verbose` changes nothing."""
    return _is_built("gloo_built", verbose=verbose)


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI can carry collectives; `verbose` changes nothing."""
    return _is_built("mpi_built", verbose=verbose)


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL can carry collectives; `verbose` changes nothing."""
    return _is_built("nccl_built", verbose=verbose)


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL can carry collectives; `verbose` changes nothing."""
    return _is_built("ddl_built", verbose=verbose)


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL can carry collectives; `verbose` changes nothing."""
    return _is_built("ccl_built", verbose=verbose)


def _is_built(name: str, *, verbose: bool) -> bool:
    del verbose
    return bool(getattr(find_module("worker_runtime.api.basics", __name__), name)())


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """A context in which these environment variables have these values, or, where the value is None, are not set."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set_variables(kwargs)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def split_list(l: Sequence[ItemT], n: int) -> list[list[ItemT]]:  # noqa: E741 - Horovod's name
    """Split a list into `n` runs whose lengths differ by one at most, the longer ones first."""
    length, longer = divmod(len(l), n)
    ends = [i * length + min(i, longer) for i in range(n + 1)]
    return [list(l[start:end]) for start, end in pairwise(ends)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether the number is a power of two."""
    return num_rank > 0 and num_rank.bit_count() == 1


def is_iterable(x: object) -> bool:
    """Whether `iter(x)` works."""
    try:
        iter(x)  # type: ignore[call-overload]  # that is the question
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare two versions such as "2.1.0+cu118" by the numbers with which they begin.

    Raises:
        ValueError: one version is no text that begins with numbers.
    """
    numbers = []
    for version in (ver, target):
        match = None
        if isinstance(version, str):
            match = _VERSION.match(version)
        if match is None:
            raise ValueError(f"{version!r} is no version such as '2.1.0'")
        numbers.append([int(part) for part in match[0].split(".")])
    longest = max(map(len, numbers))
    own, least = ([*parts, *[0] * (longest - len(parts))] for parts in numbers)
    return own >= least


def get_average_backwards_compatibility_fun(reduce_ops: ReduceOps) -> Callable[[int | None, bool | None], int]:
    """Make the function that finds the operation which a call with `op` or with the older `average` asks for."""

    def choose(op: int | None, average: bool | None) -> int:
        """The number of the operation: Average where neither is given.

        Raises:
            ValueError: both are given.
        """
        if op is not None:
            if average is not None:
                raise ValueError(_BOTH_GIVEN)
            return op
        if average is None:
            return reduce_ops.Average
        warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=3)
        if average:
            return reduce_ops.Average
        return reduce_ops.Sum

    return choose
