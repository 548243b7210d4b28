"""The random states of a rank as bytes.

To pickle a tensor, an array or hundreds of numbers takes longer than all else of a save. So each becomes bytes first.
"""

import pickle
from array import array

import torch

from worker_runtime.checkpoints.all_ranks import restore_random_states, take_random_states

_TENSORS = ("torch", "cuda")


def pack_random_states() -> bytes:
    """The present states of Python, NumPy and torch."""
    taken = take_random_states()
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
