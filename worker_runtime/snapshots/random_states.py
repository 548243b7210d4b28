"""The random states of a rank as bytes.

To pickle a tensor, an array or hundreds of numbers takes longer than all else of a save. So each becomes bytes first.
"""

import pickle
import random
from array import array
from collections.abc import Mapping
from typing import Any

import torch

from worker_runtime.checkpoints.all_ranks import restore_random_states, take_random_states

_TENSORS = ("torch", "cuda")


def pack_random_states(generators: Mapping[str, Any] | None = None) -> bytes:
    """The present states of Python, NumPy and torch, and these generators of the program."""
    taken = take_random_states()
    taken["generators"] = {name: pickle.dumps(each) for name, each in (generators or {}).items()}
    for name in _TENSORS:
        if name in taken:
            taken[name] = taken[name].numpy().tobytes()
    version, numbers, *rest = taken["python"]
    taken["python"] = version, array("I", numbers).tobytes(), *rest
    if isinstance(taken.get("numpy"), tuple):  # of another generator it is a dict
        kind, keys, *more = taken["numpy"]
        taken["numpy"] = kind, keys.tobytes(), *more
    return pickle.dumps(taken, pickle.HIGHEST_PROTOCOL)


def restore_packed(data: bytes) -> None:
    """Give Python, NumPy and torch the states of `pack_random_states`."""
    taken = pickle.loads(data)  # noqa: S301 - a rank of this job has packed it
    for name in _TENSORS:
        if name in taken:
            taken[name] = torch.frombuffer(bytearray(taken[name]), dtype=torch.uint8)
    version, numbers, *rest = taken["python"]
    taken["python"] = version, tuple(array("I", numbers)), *rest
    if isinstance(taken.get("numpy"), tuple):
        kind, keys, *more = taken["numpy"]
        taken["numpy"] = kind, list(array("I", keys)), *more
    restore_random_states(taken)


def find_generators(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are generators of random numbers."""
    return {name: value for name, value in values.items() if is_generator(value)}


def choose_generators(fresh: Mapping[str, Any], known: Mapping[int, bytes], rank: int | None) -> dict[str, Any]:
    """The generators in which ranks differ, as this rank had them.

    Args:
        fresh: the generators that this program has made anew; they stay where those of this rank are lost.
        known: what `pack_random_states` has made on each rank.
        rank: this one; None where the ranks are others.
    """
    taken = {each: pickle.loads(data)["generators"] for each, data in known.items()}  # noqa: S301 - a rank of this job has packed it
    own = {} if rank is None else taken.get(rank, {})
    return {
        name: pickle.loads(own[name]) if name in own else generator  # noqa: S301 - a rank of this job has packed it
        for name, generator in fresh.items()
        if len({_draw(each[name]) for each in taken.values() if name in each}) > 1
    }


def _draw(generator: bytes) -> float:
    """A number that tells generators apart; the bytes of equal ones may differ in those that nobody sets."""
    made = pickle.loads(generator)  # noqa: S301 - a rank of this job has packed it
    if isinstance(made, torch.Generator):
        return torch.rand((), dtype=torch.float64, generator=made, device=made.device).item()
    return float(made.random())


def is_generator(value: Any) -> bool:
    """Whether it is a generator of random numbers: of Python, NumPy or torch."""
    if isinstance(value, torch.Generator | random.Random) and not isinstance(value, random.SystemRandom):
        return True
    return type(value).__module__.startswith("numpy.random") and hasattr(value, "_bit_generator")
