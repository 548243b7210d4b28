"""Which backend moves which tensors: what torch has, the rules, and what to say where a wish cannot be fulfilled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from worker_runtime.errors import InitializationError
from worker_runtime.rendezvous import Backend


@dataclass(frozen=True, slots=True)
class Features:
    """What a torch has.

    version: torch's own.
    has_nccl, has_ucc: it can make such groups; of UCC also by a plug-in that has registered the name.
    devices: how many CUDA devices it sees; None where they were not counted.
    """

    version: str
    has_nccl: bool = False
    has_ucc: bool = False
    devices: int | None = None

    @classmethod
    def look(cls, *, counts_devices: bool = False) -> Self:
        """Those of the installed torch; counting devices may take milliseconds, and nothing else takes any."""
        return cls(
            version=str(torch.__version__),
            has_nccl=dist.is_nccl_available(),
            has_ucc=dist.is_ucc_available() or find_plugin("ucc") is not None,
            devices=torch.cuda.device_count() if counts_devices else None,
        )


def find_plugin(name: str) -> Any | None:  # noqa: ANN401 - torch leaves it untyped
    """What a plug-in has registered under this name with torch: `creator_fn` and `extended_api`; None if nothing."""
    return dist.Backend._plugins.get(name.upper())  # noqa: SLF001 - torch has no public way to ask


class BackendRefusedError(InitializationError):
    """This torch, or this machine, lacks the backend that was asked for."""

    def __init__(self, backend: Backend, objection: str) -> None:
        super().__init__(f"the backend {backend} cannot be used here: {objection}")


class CanaryError(InitializationError, RuntimeError):
    """A new group of a backend failed a test whose result is known; all its members raise this alike.

    It is a RuntimeError too since groups of process sets are made late, where errors of communication are expected.
    """

    def __init__(self, backend: Backend, positions: Sequence[int], size: int, fault: str) -> None:
        seen = f": {fault}" if fault else ""
        super().__init__(
            f"the backend {backend} failed its test on {len(positions)} of {size} members (the first is member "
            f"{positions[0]}){seen}; use another one, as with --backend gloo"
        )


class SharedDeviceError(RuntimeError):
    """NCCL refused a group since two of its members use one GPU."""

    def __init__(self, device: str, local_rank: int | None) -> None:
        who = "this worker" if local_rank is None else f"this one, of local rank {local_rank},"
        super().__init__(
            f"two workers of one host use the same GPU, which NCCL refuses ({who} uses {device}): call "
            "torch.cuda.set_device(hvd.local_rank()) before the first CUDA tensor is made, or let them share it with "
            "--backend gloo"
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends of one job; all its workers have the same.

    cpu, cuda: for tensors on such devices.
    holds_host: a wait for an operation on CUDA holds the host until its end, and not only the stream: in a job that
        outlives its workers, what is called done must be done.
    """

    cpu: Backend = Backend.GLOO
    cuda: Backend = Backend.GLOO
    holds_host: bool = False

    def of(self, device: str) -> Backend:
        """The one for tensors on this kind of device, "cpu" or "cuda"."""
        return self.cpu if device == "cpu" else self.cuda


GLOO_ALONE = Choice()


def choose(wish: Backend | None, features: Features, *, is_elastic: bool = False) -> Choice:
    """What is used, given what was asked for.

    Args:
        wish: what hvdrun or the user asked for; None leaves it to what torch has.
        features: of torch, with its devices where the wish is NCCL.
        is_elastic: the job outlives the loss of workers.

    Raises:
        BackendRefusedError: the wish cannot be fulfilled.
    """
    if wish is not None and (objection := find_objection(wish, features, is_elastic=is_elastic)):
        raise BackendRefusedError(wish, objection)
    cuda = Backend.NCCL if features.has_nccl and wish is not Backend.GLOO else Backend.GLOO
    cpu = Backend.UCC if wish is Backend.UCC else Backend.GLOO
    return Choice(cpu, cuda, holds_host=is_elastic)


def find_objection(wish: Backend, features: Features, *, is_elastic: bool = False) -> str:
    """Why the wish cannot be fulfilled, and what would help: a sentence without a full stop; "" when it can."""
    build = f"torch {features.version}"
    match wish:
        case Backend.UCC if is_elastic:
            return (
                "what is under way in it cannot be ended when a worker is lost, and this job is to outlive that; leave "
                "--backend out, or --min-np and the discovery of hosts"
            )
        case Backend.UCC if not features.has_ucc:
            return (
                f"{build} has no UCC; take one that was built with USE_UCC, such as that of NVIDIA's NGC images, or a "
                'plug-in that registers the name "ucc" when torch is imported'
            )
        case Backend.NCCL if not features.has_nccl:
            return f"{build} has no NCCL; install a build of torch for CUDA"
        case Backend.NCCL if not features.devices:
            return f"{build} has NCCL, but sees no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return ""
