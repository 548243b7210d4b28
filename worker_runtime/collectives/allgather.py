"""Allgather: every rank of a set gets the concatenation of all ranks' tensors."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch

from worker_runtime.collectives.buffers import (
    copy,
    count_bytes,
    count_row_bytes,
    fuse_small,
    pack,
    read_payload,
    unpack,
    view_bytes,
    view_memory,
)
from worker_runtime.collectives.tensor_operation import TensorOperation, check_rows, make_error, make_signature
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature, fits_payload
from worker_runtime.groups.torch_groups import TorchGroup, Work


class Gathered(NamedTuple):
    """The concatenation of all ranks' tensors in rank order, and each rank's number of rows."""

    tensor: torch.Tensor
    rows: tuple[int, ...]


class Allgather(TensorOperation[list[Gathered]]):
    """Gathers the tensors of all ranks. Several tensors are one operation, and small ones are sent together.

    The result is a list in the order of the call. Few rows on the CPU are sent inside the requests. Otherwise each rank
    broadcasts its rows into the results, which is faster than gloo's allgather with padding.

    Args:
        tensors: at least one dense tensor of at least one dimension. The first dimension may differ between ranks, and
            be 0; the others are the same on all ranks.
        among: the ranks.
        name: the full name, the same on all ranks.
        tolerates_joined: joined ranks contribute no rows; otherwise they are an error.
        reduction, note: further properties that must be the same on all ranks.

    Raises:
        ValueError: a tensor has no dimension, is sparse, has an unknown dtype, or is on another device than the first
            or on an unsupported one.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        among: Members,
        name: str,
        *,
        tolerates_joined: bool = False,
        reduction: Reduction | None = None,
        note: str = "",
    ) -> None:
        device = self._begin(name, among, tensors)
        check_rows(name, tensors)
        try:
            signature = _make_signature(
                tuple([tensor.dtype for tensor in tensors]),
                tuple([tensor.shape[1:] for tensor in tensors]),
                device,
                tolerates_joined,
                (reduction, note, among.size),
            )
        except ValueError as error:
            raise make_error(name, str(error)) from None

        self.request = Request(among.number, name, signature)
        self.sizes = tuple([tensor.shape[0] for tensor in tensors])
        self._tensors = tuple(tensors)
        self._outputs: list[torch.Tensor] = []
        self._packed: list[tuple[torch.Tensor, list[torch.Tensor]]] = []

    @property
    def payload(self) -> bytes | memoryview:
        """This rank's rows if they are few. If a rank has too many, no rows are sent so: see `payloads.combine`."""
        own_bytes = sum(map(count_bytes, self._tensors))
        if not (own_bytes and self.request.signature.payload_dtype):
            return b""
        size = self.among.size  # every rank gets the rows of all
        if fits_payload(size, own_bytes * size):
            return view_memory(pack(self._tensors))
        return b""

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        parts = self._make_outputs(release)
        row_bytes = [count_row_bytes(tensor.dtype, tensor.shape[1:]) for tensor in self._tensors]
        works, self._packed = [], []
        for member, rows in enumerate(release.sizes):
            targets = [by_member[member] for by_member in parts]
            if member == self.among.position:
                for target, tensor in zip(targets, self._tensors, strict=True):
                    target.copy_(tensor.detach())
            for indices in fuse_small([count * each for count, each in zip(rows, row_bytes, strict=True)]):
                fused = self._make_fused(member, [targets[index] for index in indices])
                works.append(group.broadcast(fused, member))
        return works

    def _conclude(self, release: Release, payload: memoryview) -> list[Gathered]:
        if self.among.size == 1:
            return [Gathered(copy(tensor), (tensor.shape[0],)) for tensor in self._tensors]
        if payload:
            self._read(release, payload)
        for fused, targets in self._packed:
            unpack(fused, targets)
        return [
            Gathered(output, rows) for output, rows in zip(self._outputs, zip(*release.sizes, strict=True), strict=True)
        ]

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [*self._tensors, *self._outputs, *(fused for fused, _ in self._packed)]

    def _make_outputs(self, release: Release) -> list[tuple[torch.Tensor, ...]]:
        """Allocate the results; return for each tensor the views of all members' rows."""
        columns = list(zip(*release.sizes, strict=True))
        self._outputs = [
            torch.empty((sum(rows), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
            for tensor, rows in zip(self._tensors, columns, strict=True)
        ]
        return [output.split_with_sizes(rows) for output, rows in zip(self._outputs, columns, strict=True)]

    def _read(self, release: Release, payload: memoryview) -> None:
        """Fill the results from the payload: each member's bytes, tensor by tensor."""
        parts = self._make_outputs(release)
        if len(parts) == 1:
            targets = self._outputs
        else:
            targets = [target for of_member in zip(*parts, strict=True) for target in of_member]
        read_payload(payload, targets)

    def _make_fused(self, member: int, targets: list[torch.Tensor]) -> torch.Tensor:
        """The buffer of a member's bytes: the memory of its only target, or a new one that is unpacked later."""
        if len(targets) == 1:
            return view_bytes(targets[0])
        if member == self.among.position:
            return pack(targets)
        fused = torch.empty(sum(map(count_bytes, targets)), dtype=torch.uint8, device=targets[0].device)
        self._packed.append((fused, targets))
        return fused


def find_own_rows(gathered: Gathered, among: Members) -> tuple[int, int]:
    """The bounds of this rank's rows."""
    ends = list(accumulate(gathered.rows))
    end = ends[among.position]
    return end - gathered.rows[among.position], end


@lru_cache(maxsize=1024)
def _make_signature(
    dtypes: tuple[torch.dtype, ...],
    row_shapes: tuple[tuple[int, ...], ...],
    device: str,
    tolerates_joined: bool,  # noqa: FBT001 - a part of the cache's key
    more: tuple[Reduction | None, str, int],
) -> Signature:
    reduction, note, size = more
    may_travel_inside = device == "cpu" and size > 1 and not tolerates_joined
    payload_dtype = "uint8" if may_travel_inside else ""
    own = {"payload_dtype": payload_dtype, "tolerates_joined": tolerates_joined, "note": note}
    return make_signature(Kind.ALLGATHER, dtypes, row_shapes, device, reduction, **own)
