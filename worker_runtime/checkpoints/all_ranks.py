"""Saving and loading a state on all ranks: rank 0 reads and writes the files, and all ranks get the same result.

A checkpoint also has each rank's random states of Python, NumPy and torch.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from worker_runtime.account import ACCOUNT, Part
from worker_runtime.checkpoints.folder import CheckpointFolder
from worker_runtime.errors import CheckpointError

_NUMPY = "numpy"


def take_random_states() -> dict[str, Any]:
    """The random states: Python's, torch's for the CPU, NumPy's if imported, and the present GPU's if it is used."""
    taken: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if _NUMPY in sys.modules:
        taken[_NUMPY] = sys.modules[_NUMPY].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        taken["cuda"] = torch.cuda.get_rng_state()
    return taken


def restore_random_states(taken: dict[str, Any]) -> None:
    """Restore the random states of the generators that this process has."""
    random.setstate(taken["python"])
    torch.set_rng_state(taken["torch"])
    if _NUMPY in taken and _NUMPY in sys.modules:
        sys.modules[_NUMPY].random.set_state(taken[_NUMPY])
    if "cuda" in taken and torch.cuda.is_available():
        torch.cuda.set_rng_state(taken["cuda"])


Gather = Callable[[Any, str], list[Any]]

_LONGEST_CAUSE = 400  # characters of an error's text


class Keepable(Protocol):
    """A state that can be saved in a checkpoint; see `elastic.State`."""

    def to_checkpoint(self) -> Any:
        """Return what was saved last in memory. Called on rank 0."""

    def from_checkpoint(self, kept: Any) -> None:
        """Load it. Called on rank 0; a `sync()` follows."""

    def get_extra_state(self) -> Any:
        """Return what else a job of the same size needs to continue bit for bit. Called on rank 0."""

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """Continue from it. Called on all ranks."""

    def sync(self) -> None:
        """Broadcast the state of rank 0."""

    def adapt(self) -> None:
        """Adapt to another size of the job."""


@dataclass(frozen=True, slots=True)
class Found:
    """The part of a checkpoint that all ranks need.

    random: the random states of each rank of the job that saved it.
    extra: the return value of `get_extra_state()`.
    """

    random: list[dict[str, Any]]
    extra: Any


def save(state: Keepable, folder: Path, broadcast: Callable[[Any], Any], gather: Gather, rank: int) -> Path:
    """Write a checkpoint of the state's last save. All ranks must call this at the same place of the program.

    Args:
        state: the state.
        folder: the folder of the checkpoints, to which rank 0 writes.
        broadcast: returns rank 0's object on all ranks.
        gather: returns the objects of all ranks; it gets a name.
        rank: this worker's rank.

    Returns:
        The path of the checkpoint.

    Raises:
        CheckpointError: the checkpoint could not be written; raised on all ranks. Earlier checkpoints are intact.
        HorovodInternalError: a rank was lost.
    """
    with ACCOUNT.covering(Part.CHECKPOINT):
        return _save(state, folder, broadcast, gather, rank)


def _save(state: Keepable, folder: Path, broadcast: Callable[[Any], Any], gather: Gather, rank: int) -> Path:
    random = gather(take_random_states(), "checkpoint.random")
    path, failure = None, ""
    if rank == 0:
        try:
            # The extra state is under the key "course", so that earlier versions' checkpoints can be loaded.
            content = {"state": state.to_checkpoint(), "random": random, "course": state.get_extra_state()}
            path = CheckpointFolder(folder).write(partial(torch.save, content))
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - the code of the program's objects runs here
            failure = f"no checkpoint was written to {folder}: {_shorten(error)}; the state must be picklable"
    result: tuple[Path, str] = broadcast((path, failure))
    _raise_everywhere(result[1])
    return result[0]


def load(state: Keepable, folder: Path, broadcast: Callable[[Any], Any], gather: Gather, rank: int) -> bool:
    """Load the newest complete checkpoint. All ranks must call this at the same place of the program.

    In a job of the same size each rank's random numbers continue too.

    Args:
        state: a state with the same attributes as the saved one.
        folder: the folder of the checkpoints, from which rank 0 reads.
        broadcast: returns rank 0's object on all ranks.
        gather: returns the objects of all ranks; it gets a name.
        rank: this worker's rank.

    Returns:
        True; False if there is no checkpoint, and then nothing has changed.

    Raises:
        CheckpointError: no checkpoint is readable, or its content does not fit the state; raised on all ranks.
        HorovodInternalError: a rank was lost.
    """
    found, failure = None, ""
    seen = gather(CheckpointFolder(folder).find_newest_number(), "checkpoint.newest")
    if rank == 0:
        try:
            _check_shared(folder, seen)
            found = _read(state, folder)
        except CheckpointError as error:
            failure = str(error)
    found, failure = broadcast((found, failure))
    _raise_everywhere(failure)

    if found is None:
        return False

    state.sync()
    if len(found.random) == len(seen):
        restore_random = partial(restore_random_states, found.random[rank])
        restore_random()
        state.load_extra_state(found.extra, restore_random)
    else:
        state.adapt()
    return True


def _check_shared(folder: Path, seen: list[int]) -> None:
    """Raise an error if another rank sees a newer checkpoint than rank 0, which would silently load an older one."""
    newest = max(seen)
    if newest > seen[0]:
        raise CheckpointError(
            f"rank {seen.index(newest)} sees a newer checkpoint in {folder} than rank 0 does; give a folder that all "
            "hosts share, or remove the checkpoints of other jobs there"
        )


def _read(state: Keepable, folder: Path) -> Found | None:
    """Load the newest complete checkpoint into the state; for rank 0."""
    path = CheckpointFolder(folder).find_newest(tell)
    if path is None:
        return None
    try:
        content = torch.load(path, weights_only=False)  # trusted like the program itself
        state.from_checkpoint(content["state"])
        found = Found(content["random"], content["course"])
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint {path} does not fit this program: {_shorten(error)}; continue with the program that "
            "wrote it, or start again with another folder"
        ) from error
    tell(f"continuing from {path}")
    return found


def _raise_everywhere(failure: str) -> None:
    if failure:
        raise CheckpointError(failure)


def _shorten(error: Exception) -> str:
    """The error's text as a part of a sentence."""
    if isinstance(error, CheckpointError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_LONGEST_CAUSE].rstrip(".")


def tell(sentence: str) -> None:
    """Print a message for the user on standard error."""
    sys.stderr.write(f"hvdrun: {sentence}\n")
    sys.stderr.flush()
