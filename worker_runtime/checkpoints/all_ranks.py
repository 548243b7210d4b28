"""Saving and loading a state together: rank 0 has the files, and all ranks learn alike what became of it.

Random numbers are those of Python, NumPy and torch, of each rank.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from worker_runtime.checkpoints.folder import CheckpointFolder
from worker_runtime.errors import CheckpointError

_NUMPY = "numpy"


def take_random_states() -> dict[str, Any]:
    """Where they stand: NumPy's where it is imported, torch's of the CPU, and of the present GPU where it is used."""
    taken: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if _NUMPY in sys.modules:
        taken[_NUMPY] = sys.modules[_NUMPY].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        taken["cuda"] = torch.cuda.get_rng_state()
    return taken


def restore_random_states(taken: dict[str, Any]) -> None:
    """Let the generators go on from there, as far as this process has them."""
    random.setstate(taken["python"])
    torch.set_rng_state(taken["torch"])
    if _NUMPY in taken and _NUMPY in sys.modules:
        sys.modules[_NUMPY].random.set_state(taken[_NUMPY])
    if "cuda" in taken and torch.cuda.is_available():
        torch.cuda.set_rng_state(taken["cuda"])


Gather = Callable[[Any, str], list[Any]]

_LONGEST_CAUSE = 400  # so much is told of an error's text


class Keepable(Protocol):
    """A state that can be kept in files."""

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - whatever can be pickled
        """What was saved last in memory; asked for on rank 0."""

    def from_checkpoint(self, kept: Any) -> None:  # noqa: ANN401 - see above
        """Go on from there; called on rank 0, and a sync follows."""

    def describe_course(self) -> Any:  # noqa: ANN401 - see above
        """What else a job of the same size needs to go on to the last bit; asked for on rank 0."""

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - see above
        """Go on so; called on every rank."""

    def sync(self) -> None:
        """Give all ranks the state of rank 0."""

    def adapt(self) -> None:
        """The job has another size than the state has known."""


@dataclass(frozen=True, slots=True)
class Found:
    """What all ranks must know of the checkpoint that rank 0 has read.

    random: of each rank that has saved, where its generators of random numbers stood.
    course: what the state needs besides to go on to the last bit.
    """

    random: list[dict[str, Any]]
    course: Any


def save(state: Keepable, folder: Path, broadcast: Callable[[Any], Any], gather: Gather, rank: int) -> Path:
    """Write a checkpoint of what was saved last in memory; all ranks must call it at the same place.

    Args:
        state: what is kept.
        folder: of the checkpoints; rank 0 writes there.
        broadcast: gives every rank the object of rank 0.
        gather: gives every rank the objects of all, under a name.
        rank: of this worker.

    Returns:
        Its file.

    Raises:
        CheckpointError: it could not be written, on all ranks alike; the checkpoints before are as they were.
        HorovodInternalError: a rank has gone.
    """
    random = gather(take_random_states(), "checkpoint.random")
    path, trouble = None, ""
    if rank == 0:
        try:
            content = {"state": state.to_checkpoint(), "random": random, "course": state.describe_course()}
            path = CheckpointFolder(folder).write(partial(torch.save, content))
        except CheckpointError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001 - the code of the program's own objects runs here
            trouble = (
                f"no checkpoint was written to {folder}: {_shorten(error)}; what the state keeps must be picklable"
            )
    told: tuple[Path, str] = broadcast((path, trouble))
    _raise_everywhere(told[1])
    return told[0]


def load(state: Keepable, folder: Path, broadcast: Callable[[Any], Any], gather: Gather, rank: int) -> bool:
    """Go on from the newest checkpoint that is whole; all ranks must call it at the same place.

    A job of the same size goes on with the random numbers that would have come next on each rank.

    Args:
        state: with the names that it had when it was saved.
        folder: of the checkpoints; rank 0 reads there.
        broadcast: gives every rank the object of rank 0.
        gather: gives every rank the objects of all, under a name.
        rank: of this worker.

    Returns:
        Whether there was one; else nothing has changed.

    Raises:
        CheckpointError: none of those that there are can be read, or what is read does not fit; on all ranks alike.
        HorovodInternalError: a rank has gone.
    """
    found, trouble = None, ""
    seen = gather(CheckpointFolder(folder).find_newest_number(), "checkpoint.newest")
    if rank == 0:
        try:
            _check_shared(folder, seen)
            found = _read(state, folder)
        except CheckpointError as error:
            trouble = str(error)
    found, trouble = broadcast((found, trouble))
    _raise_everywhere(trouble)
    if found is None:
        return False
    state.sync()
    if len(found.random) == len(seen):
        restore_random = partial(restore_random_states, found.random[rank])
        restore_random()
        state.resume_course(found.course, restore_random)
    else:
        state.adapt()
    return True


def _check_shared(folder: Path, seen: list[int]) -> None:
    """Raise where rank 0 would miss what another rank sees: it would silently begin anew, or too early."""
    newest = max(seen)
    if newest > seen[0]:
        raise CheckpointError(
            f"rank {seen.index(newest)} sees a newer checkpoint in {folder} than rank 0 does; give a folder that all "
            "hosts share, or remove what is left there of another job"
        )


def _read(state: Keepable, folder: Path) -> Found | None:
    """On rank 0: read a checkpoint into the state."""
    path = CheckpointFolder(folder).find_newest(tell)
    if path is None:
        return None
    try:
        content = torch.load(path, weights_only=False)  # what it executes is trusted as the program itself is
        state.from_checkpoint(content["state"])
        found = Found(content["random"], content["course"])
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint {path} does not fit this program: {_shorten(error)}; go on with the program that has "
            "written it, or begin anew with another folder"
        ) from error
    tell(f"going on from {path}")
    return found


def _raise_everywhere(trouble: str) -> None:
    if trouble:
        raise CheckpointError(trouble)


def _shorten(error: Exception) -> str:
    """Its text as a part of a sentence."""
    text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_LONGEST_CAUSE].rstrip(".")


def tell(sentence: str) -> None:
    """Print a sentence for the user on standard error."""
    sys.stderr.write(f"hvdrun: {sentence}\n")
    sys.stderr.flush()
