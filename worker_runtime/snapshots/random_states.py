"""The random states of a rank as bytes.

torch pickles a tensor by way of a whole file, which takes longer than all else of a save: here it is bytes.
"""

import pickle

import torch

from worker_runtime.checkpoints.all_ranks import restore_random_states, take_random_states

_TENSORS = ("torch", "cuda")


def pack_random_states() -> bytes:
    """The present states of Python, NumPy and torch."""
    taken = take_random_states()
    for name in _TENSORS:
        if name in taken:
            taken[name] = taken[name].numpy().tobytes()
    return pickle.dumps(taken, pickle.HIGHEST_PROTOCOL)


def restore_packed(data: bytes) -> None:
    """Continue with these states."""
    taken = pickle.loads(data)  # noqa: S301 - a rank of this job has packed it
    for name in _TENSORS:
        if name in taken:
            taken[name] = torch.frombuffer(bytearray(taken[name]), dtype=torch.uint8)
    restore_random_states(taken)
