"""Which backend moves which tensors: the rules, and what to say where a wish cannot be fulfilled. Pure."""

from dataclasses import dataclass

from worker_runtime.backends.errors import BackendRefusedError
from worker_runtime.backends.features import Features
from worker_runtime.membership import Backend

_RESTARTED = frozenset({Backend.UCC, Backend.MPI})


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends of one job; all its workers have the same.

    cpu, cuda: for tensors on such devices.
    """

    cpu: Backend = Backend.GLOO
    cuda: Backend = Backend.GLOO

    def of(self, device: str) -> Backend:
        """The one for tensors on this kind of device, "cpu" or "cuda"."""
        return self.cpu if device == "cpu" else self.cuda

    @property
    def recovers_in_process(self) -> bool:
        """Whether a worker that has lost a peer can go on in the same process.

        Where not, its pending operations cannot be ended, nor their results trusted: the process must be replaced.
        """
        return self.cpu not in _RESTARTED


GLOO_ALONE = Choice()


def choose(wish: Backend | None, features: Features) -> Choice:
    """What is used, given what was asked for.

    Args:
        wish: what hvdrun or the user asked for; None leaves it to what torch has.
        features: of torch, with its devices where the wish is NCCL.

    Raises:
        BackendRefusedError: the wish cannot be fulfilled.
    """
    if wish is not None and (objection := find_objection(wish, features)):
        raise BackendRefusedError(wish, objection)
    cuda = Backend.NCCL if features.has_nccl and wish is not Backend.GLOO else Backend.GLOO
    return Choice(cpu=wish if wish in (Backend.UCC, Backend.MPI) else Backend.GLOO, cuda=cuda)


def find_objection(wish: Backend, features: Features) -> str:
    """Why the wish cannot be fulfilled, and what would help: a sentence without a full stop; "" when it can."""
    torch = f"torch {features.version}"
    match wish:
        case Backend.UCC if not features.has_ucc:
            return (
                f"{torch} has no UCC; take one that was built with USE_UCC, such as that of NVIDIA's NGC images, or a "
                'plug-in that registers the name "ucc" when torch is imported'
            )
        case Backend.MPI if not features.has_mpi:
            return f"{torch} has no MPI; build torch from source on a machine that has MPI"
        case Backend.NCCL if not features.has_nccl:
            return f"{torch} has no NCCL; install a build of torch for CUDA"
        case Backend.NCCL if not features.devices:
            return f"{torch} has NCCL, but sees no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return ""
