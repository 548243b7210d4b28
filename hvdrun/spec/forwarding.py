"""Which variables the user wants on all hosts: -x NAME, -x NAME=VALUE and -x 'NCCL_*', as mpirun reads them. Pure."""

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from hvdrun.errors import BadValueError, VariableNotSetError
from hvdrun.spec.masking import MASK

ALWAYS = (b"PATH", b"PYTHONPATH", b"LD_LIBRARY_PATH", b"VIRTUAL_ENV", b"CONDA_PREFIX")
OWN_PREFIX = b"HVD_"  # of the job that hvdrun itself may run in
_FLAG = "-x"
_WANTED = "a variable of the environment, as in -x NCCL_DEBUG=INFO"
_PATTERN = frozenset("*?[")


def choose_forwarded(requests: Sequence[str], own: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables to forward, with their values; where one is asked for twice, the later request counts.

    A pattern that fits nothing is fine, and so is the name of a variable that is forwarded anyway and not set.

    Args:
        requests: what followed each -x.
        own: the environment of hvdrun.

    Raises:
        BadValueError: a request is none.
        VariableNotSetError: a name without a value is no variable of hvdrun's own environment.
    """
    chosen: dict[bytes, bytes] = {}
    for request in requests:
        name, equals, value = request.partition("=")
        if not name or "\0" in request:
            raise BadValueError(_FLAG, _WANTED, f"{name}{equals}{MASK if value else ''}")
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
    """What fits the pattern, but for the variables of a job around this one."""
    return {
        name: value
        for name, value in own.items()
        if fnmatchcase(os.fsdecode(name), pattern) and not name.startswith(OWN_PREFIX)
    }
