"""Broadcast: every rank of a set gets the root's values."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

import torch

from worker_runtime.collectives.buffers import (
    copy,
    count_bytes,
    count_row_bytes,
    fuse_small,
    is_plain,
    pack,
    read_payload,
    unpack,
    view_memory,
)
from worker_runtime.collectives.tensor_operation import TensorOperation, make_error, make_signature, read_root
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Kind, Release, Request, Signature, fits_payload
from worker_runtime.groups.torch_groups import TorchGroup, Work


class Broadcast(TensorOperation[list[torch.Tensor]]):
    """Sends the root's values to every rank. Several tensors are one operation, and small ones are sent together.

    The result is a list of tensors, in the order of the call.

    Args:
        tensors: at least one dense tensor, of the same shapes and dtypes on all ranks. On other ranks than the root the
            values are ignored.
        root: the root's rank in the job.
        among: the ranks.
        name: the full name, the same on all ranks.
        into: a tensor of the same shape and dtype for each result (it may be the input, which is then overwritten
            except on the root); None creates new ones.

    Raises:
        ValueError: the root is not in the set; a dtype is unknown; a tensor is sparse, or on another device than the
            first or on an unsupported one; or a result does not fit `into`.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        root: int,
        among: Members,
        name: str,
        into: Sequence[torch.Tensor] | None = None,
    ) -> None:
        device = self._begin(name, among, tensors, into)
        root = read_root(name, root, among.ranks)
        try:
            signature = _make_signature(
                tuple([tensor.dtype for tensor in tensors]),
                tuple([tensor.shape for tensor in tensors]),
                root,
                device,
                among.size,
            )
        except ValueError as error:
            raise make_error(name, str(error)) from None

        self.request = Request(among.number, name, signature)
        self._tensors = tuple(tensors)
        self._root = among.ranks.index(root)
        self._is_root = root == among.rank
        self._into = into
        self._fused: list[torch.Tensor] = []
        self._received: list[torch.Tensor] = []

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return "": the root's data are not changed; see `Operation`."""
        del is_begun
        return ""

    @property
    def needed_rank(self) -> int:
        """The root."""
        return self.among.ranks[self._root]

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        return type(self)(self._tensors, ranks[self.needed_rank], among, self.request.name, self._into)

    @property
    def payload(self) -> bytes | memoryview:
        """The root's bytes; empty on the other ranks."""
        if not (self._is_root and self.request.signature.payload_dtype):
            return b""
        return view_memory(pack(self._tensors))

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        del release
        sources: Sequence[torch.Tensor] = self._tensors
        if not self._is_root:
            sources = self._received = self._make_targets()
        self._fused = []
        for indices in self._sort():
            parts = [sources[index] for index in indices]
            if self._is_root or len(parts) == 1:
                self._fused.append(pack(parts))
            else:
                total_bytes = sum(map(count_bytes, parts))
                self._fused.append(torch.empty(total_bytes, dtype=torch.uint8, device=parts[0].device))
        return [group.broadcast(fused, self._root) for fused in self._fused]

    def _conclude(self, release: Release, payload: memoryview) -> list[torch.Tensor]:
        del release
        if not self._is_root:
            if payload:
                results = self._read(payload)
            else:
                results = self._unpack()
        elif self._into is None:
            results = [copy(tensor) for tensor in self._tensors]
        else:
            results = list(self._tensors)

        if self._into is None:
            return results
        for target, result in zip(self._into, results, strict=True):
            if target is not result and not target.is_set_to(result):
                target.detach().copy_(result.detach())
        return list(self._into)

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [*self._tensors, *self._fused, *self._received, *(self._into or ())]

    def _sort(self) -> list[tuple[int, ...]]:
        return fuse_small([count_bytes(tensor) for tensor in self._tensors])

    def _make_targets(self) -> list[torch.Tensor]:
        """Plain tensors for the received values: the memory of the results where that is plain."""
        return [
            target.detach() if self._into is not None and is_plain(target) else _make_target(target)
            for target in self._into or self._tensors
        ]

    def _unpack(self) -> list[torch.Tensor]:
        """The received tensors; the fused ones are unpacked first."""
        for fused, indices in zip(self._fused, self._sort(), strict=True):
            if len(indices) > 1:
                unpack(fused, [self._received[index] for index in indices])
        return self._received

    def _read(self, payload: memoryview) -> list[torch.Tensor]:
        targets = self._make_targets()
        read_payload(payload, targets)
        return targets


def _make_target(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


@lru_cache(maxsize=1024)
def _make_signature(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...], root: int, device: str, size: int
) -> Signature:
    total_bytes = sum(count_row_bytes(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True))
    in_request = device == "cpu" and size > 1 and total_bytes and fits_payload(size, total_bytes)
    payload_dtype = "uint8" if in_request else ""
    return make_signature(Kind.BROADCAST, dtypes, shapes, device, root=root, payload_dtype=payload_dtype)
