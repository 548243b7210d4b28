"""The choice of backends: torch's features, the rules, and the reasons against a requested backend."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Self

import torch
import torch.distributed as dist

from worker_runtime.errors import InitializationError
from worker_runtime.groups.backends.nccl import Nccl
from worker_runtime.groups.backends.ucc import Gated, Ucc, find_plugin
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.torch_groups import Interruptible, MakeGroup, TorchGroup
from worker_runtime.groups.torch_store import open_torch_store
from worker_runtime.rendezvous import Assignment, Backend


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a torch.

    version: torch's version.
    has_nccl, has_ucc: it can create such groups; for UCC also by a plug-in that has registered the name.
    devices: the number of CUDA devices; None if they were not counted.
    """

    version: str
    has_nccl: bool = False
    has_ucc: bool = False
    devices: int | None = None

    @classmethod
    def look(cls, requested: Backend | None = None) -> Self:
        """The features of the installed torch; devices are counted only for NCCL, since that may take milliseconds."""
        return cls(
            version=str(torch.__version__),
            has_nccl=dist.is_nccl_available(),
            has_ucc=dist.is_ucc_available() or find_plugin("ucc") is not None,
            devices=torch.cuda.device_count() if requested is Backend.NCCL else None,
        )


class BackendRefusedError(InitializationError):
    """This torch, or this machine, lacks the requested backend.

    Cause: This torch, or this machine, lacks the backend.
    Remedy: Install a torch that has it, or remove `--backend`.
    """

    def __init__(self, backend: Backend, objection: str) -> None:
        super().__init__(f"the backend {backend} cannot be used here: {objection}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends of one job, the same on all workers.

    cpu, cuda: the backend for tensors on such devices.
    holds_host: a wait for an operation on CUDA blocks the host until it completes, and not only the stream: in an
        elastic job an operation that counts as done must be done.
    """

    cpu: Backend = Backend.GLOO
    cuda: Backend = Backend.GLOO
    holds_host: bool = False

    def of(self, device: str) -> Backend:
        """The backend for tensors of a device type, "cpu" or "cuda"."""
        if device == "cpu":
            return self.cpu
        return self.cuda


GLOO_ALONE = Choice()


def choose_backends(requested: Backend | None, features: Features, *, is_elastic: bool = False) -> Choice:
    """Choose the backends.

    Args:
        requested: the backend that hvdrun or the user requests; None chooses by torch's features.
        features: torch's features, with its devices if NCCL is requested.
        is_elastic: the job is elastic.

    Raises:
        BackendRefusedError: the requested backend cannot be used.
    """
    if requested is not None and (objection := find_objection(requested, features, is_elastic=is_elastic)):
        raise BackendRefusedError(requested, objection)
    if features.has_nccl and requested is not Backend.GLOO:
        cuda = Backend.NCCL
    else:
        cuda = Backend.GLOO
    if requested is Backend.UCC:
        cpu = Backend.UCC
    else:
        cpu = Backend.GLOO
    return Choice(cpu, cuda, holds_host=is_elastic)


def find_objection(requested: Backend, features: Features, *, is_elastic: bool = False) -> str:
    """The reason why a backend cannot be used, and the remedy, without a full stop; "" if it can be used."""
    build = f"torch {features.version}"
    match requested:
        case Backend.UCC if is_elastic:
            return (
                "its operations cannot be aborted when a worker is lost, as this elastic job needs; remove --backend, "
                "or --min-np and the discovery of hosts"
            )
        case Backend.UCC if not features.has_ucc:
            return (
                f"{build} has no UCC; use one that was built with USE_UCC, such as that of NVIDIA's NGC images, or a "
                'plug-in that registers the name "ucc" when torch is imported'
            )
        case Backend.NCCL if not features.has_nccl:
            return f"{build} has no NCCL; install a build of torch for CUDA"
        case Backend.NCCL if not features.devices:
            return f"{build} has NCCL, but sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    return ""


def compose(choice: Choice, gloo: Gloo, numbers: Assignment) -> MakeGroup:
    """The function that creates the groups of a generation.

    Args:
        choice: the backends.
        gloo: creates gloo's groups.
        numbers: this worker's ranks.
    """
    open_store = partial(open_torch_store, gloo.store, gloo.address)
    limit = gloo.operation_limit
    makers: dict[Backend, MakeGroup] = {
        Backend.GLOO: gloo.make,
        # With one worker on a host no GPU is shared, or the hosts of the workers are not known yet.
        Backend.NCCL: Nccl(
            open_store, numbers.local_rank if numbers.local_size > 1 else None, limit, choice.holds_host
        ).make,
        Backend.UCC: Gated(gloo.make, Ucc(open_store).connect, limit).make,
    }

    def make(prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Interruptible]:
        return makers[choice.of(device)](prefix, rank, size, device, limit)

    return make
