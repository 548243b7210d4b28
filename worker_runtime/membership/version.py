"""The version of this runtime, which is loaded with it: a process that was forked may have imported the rest before."""

from collections.abc import Mapping

from worker_runtime.errors import WorkerVersionError
from worker_runtime.rendezvous import VERSION

OWN_VERSION = "0.3.0"  # as in hvdrun/version.py


def check_version(environment: Mapping[str, str]) -> None:
    """Refuse a job whose agent has another version: each version has its own protocol.

    Raises:
        WorkerVersionError: the agent has another version.
    """
    version = environment.get(VERSION, OWN_VERSION)
    if version != OWN_VERSION:
        raise WorkerVersionError(OWN_VERSION, version)
