"""The environment that hvdrun gives to workers: its own on this machine, with what makes output and cores fair."""

from collections.abc import Mapping

_OWN_PREFIX = b"HVD_"  # of the job that hvdrun itself may run in
_DEFAULTS = {b"PYTHONUNBUFFERED": b"1"}
THREADS = b"OMP_NUM_THREADS"


def choose_environment(own: Mapping[bytes, bytes], neighbours: int) -> dict[bytes, bytes]:
    """All variables of the workers on a host, but for those that tell them apart.

    own: the environment of hvdrun.
    neighbours: how many workers share the host. Each then uses one thread unless the user has said otherwise, as
        torchrun does it: workers that all use all cores are slower than any other choice.
    """
    environment = {name: value for name, value in own.items() if not name.startswith(_OWN_PREFIX)}
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    if neighbours > 1:
        environment.setdefault(THREADS, b"1")
    return environment


def find_added(own: Mapping[bytes, bytes], chosen: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that the workers have, and that hvdrun does not have with the same value."""
    return {name: value for name, value in chosen.items() if own.get(name) != value}


def find_removed(own: Mapping[bytes, bytes], chosen: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """The variables that hvdrun has and the workers do not, in order."""
    return tuple(sorted(own.keys() - chosen.keys()))
