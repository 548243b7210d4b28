"""What the installed torch can communicate with."""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist


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
