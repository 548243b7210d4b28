"""Why a backend is not used."""

from collections.abc import Sequence

from worker_runtime.errors import InitializationError
from worker_runtime.rendezvous import Backend


class BackendRefusedError(InitializationError):
    """This torch, or this machine, lacks the backend that was asked for."""

    def __init__(self, backend: Backend, objection: str) -> None:
        super().__init__(f"the backend {backend} cannot be used here: {objection}")
        self.backend = backend
        self.objection = objection


class CanaryError(InitializationError, RuntimeError):
    """A new group of a backend failed a test whose result is known; all its members raise this alike.

    It is a RuntimeError too since groups of process sets are made late, where errors of communication are expected.

    positions: of the members that saw a fault, in the group.
    """

    def __init__(self, backend: Backend, positions: Sequence[int], size: int, fault: str) -> None:
        seen = f": {fault}" if fault else ""
        super().__init__(
            f"the backend {backend} failed its test on {len(positions)} of {size} members (the first is member "
            f"{positions[0]}){seen}; use another one, as with --backend gloo"
        )
        self.backend = backend
        self.positions = tuple(positions)


class SharedDeviceError(RuntimeError):
    """NCCL refused a group since two of its members use one GPU."""

    def __init__(self, device: str, local_rank: int | None) -> None:
        who = "this worker" if local_rank is None else f"this one, of local rank {local_rank},"
        super().__init__(
            f"two workers of one host use the same GPU, which NCCL refuses ({who} uses {device}): call "
            "torch.cuda.set_device(hvd.local_rank()) before the first CUDA tensor is made, or let them share it with "
            "--backend gloo"
        )
        self.device = device
        self.local_rank = local_rank
