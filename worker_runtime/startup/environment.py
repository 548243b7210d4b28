"""What the agent's variables tell a worker besides how to join; see `rendezvous.bootstrap` for that."""

from collections.abc import Mapping
from pathlib import Path

from worker_runtime.rendezvous import CHECKPOINT, Assignment

_ELASTIC = "HOROVOD_ELASTIC"  # "1" in a job whose policy allows losses
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")  # in the order of Assignment


def read_is_elastic(environment: Mapping[str, str]) -> bool:
    """Whether the job outlives the loss of workers."""
    return environment.get(_ELASTIC) == "1"


def read_checkpoint(environment: Mapping[str, str]) -> Path | None:
    """The folder that the job's checkpoints are in; None where it has none."""
    folder = environment.get(CHECKPOINT)
    return Path(folder) if folder else None


def read_numbers(environment: Mapping[str, str]) -> Assignment:
    """The numbers with which the agent has started this worker."""
    return Assignment(*(int(environment[f"HOROVOD_{name}"]) for name in _NUMBERS))
