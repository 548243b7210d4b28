"""The version of this runtime, which is loaded with it: a process that was forked may have imported the rest before."""

from collections.abc import Mapping

from worker_runtime.errors import WorkerVersionError
from worker_runtime.rendezvous import VERSION

RELEASE = "0.3.0"  # as in hvdrun/version.py


def check_release(environment: Mapping[str, str]) -> None:
    """Refuse a job whose agent has another version: each version has its own protocol.

    Raises:
        WorkerVersionError: it has.
    """
    version = environment.get(VERSION, RELEASE)
    if version != RELEASE:
        raise WorkerVersionError(RELEASE, version)
