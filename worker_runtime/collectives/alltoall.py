"""Alltoall: each rank of a set sends some rows to each rank."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from worker_runtime.collectives.buffers import copy, count_row_bytes, make_rows, view_bytes
from worker_runtime.collectives.tensor_operation import TensorOperation, check_rows, make_error, make_signature
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Kind, Release, Request
from worker_runtime.groups.torch_groups import TorchGroup, Work

Splits = Sequence[int] | torch.Tensor


class Exchanged(NamedTuple):
    """The received rows in rank order, and the number from each rank (int32, on the device of the splits)."""

    tensor: torch.Tensor
    received_splits: torch.Tensor


class Alltoall(TensorOperation[Exchanged]):
    """Sends some rows to each rank, and receives rows from each.

    Args:
        tensor: a dense tensor of at least one dimension. All dimensions but the first are the same on all ranks.
        splits: the number of rows for each rank of the set, in rank order: integers, or a one-dimensional tensor of
            int32 or int64, whose sum is the number of rows. None sends equally many rows to each rank.
        among: the ranks.
        name: the full name, the same on all ranks.

    Raises:
        ValueError: the splits are not one for each rank, are negative, are not integers, or do not add up to the number
            of rows (Horovod drops the rest); the number of rows is not a multiple of the size and no splits are given;
            or see `Allgather`.
    """

    def __init__(self, tensor: torch.Tensor, splits: Splits | None, among: Members, name: str) -> None:
        device = self._begin(name, among, [tensor])
        check_rows(name, [tensor])
        try:
            self.sizes = _choose_splits(splits, tensor.shape[0], among.size)
            signature = make_signature(Kind.ALLTOALL, (tensor.dtype,), (tensor.shape[1:],), device)
        except ValueError as error:
            raise make_error(name, str(error)) from None
        self.request = Request(among.number, name, signature)
        self._tensor = tensor
        if isinstance(splits, torch.Tensor):
            self._splits_device = splits.device
        else:
            self._splits_device = torch.device("cpu")
        self._source: torch.Tensor | None = None
        self._output: torch.Tensor | None = None

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        received = self._find_received(release)
        row_shape = self._tensor.shape[1:]
        self._output = torch.empty((sum(received), *row_shape), dtype=self._tensor.dtype, device=self._tensor.device)
        each = count_row_bytes(self._tensor.dtype, row_shape)
        if not each or not any(any(splits) for splits in release.sizes):
            return ()
        self._source = make_rows(self._tensor)
        return [
            group.alltoall_base(
                view_bytes(self._output),
                view_bytes(self._source),
                [rows * each for rows in received],
                [rows * each for rows in self.sizes],
            )
        ]

    def _conclude(self, release: Release, payload: memoryview) -> Exchanged:
        del payload
        if self._output is None:
            received = self.sizes
        else:
            received = self._find_received(release)
        splits = torch.tensor(received, dtype=torch.int32, device=self._splits_device)
        if self._output is None:
            return Exchanged(copy(self._tensor), splits)
        return Exchanged(self._output, splits)

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [tensor for tensor in (self._tensor, self._source, self._output) if tensor is not None]

    def _find_received(self, release: Release) -> tuple[int, ...]:
        return tuple(splits[self.among.position] for splits in release.sizes)


def _choose_splits(splits: Splits | None, rows: int, size: int) -> tuple[int, ...]:
    """The number of rows for each rank; raises ValueError for wrong splits."""
    if splits is None:
        if rows % size:
            raise ValueError(f"the number of rows, {rows}, is no multiple of the number of ranks, {size}; give splits")
        return (rows // size,) * size

    chosen = _read_splits(splits)
    if len(chosen) != size:
        raise ValueError(
            f"Number of entries in splits is {len(chosen)}, and the set has {size} ranks; give one for each"
        )
    if min(chosen) < 0:
        raise ValueError(f"the splits {list(chosen)} are negative in part; give numbers of rows")
    if sum(chosen) > rows:
        raise ValueError(f"Sum of splits entries is {sum(chosen)}, greater than the first dimension of tensor, {rows}")
    if sum(chosen) < rows:
        raise ValueError(
            f"the splits add up to {sum(chosen)} of {rows} rows, and the rest would be dropped; pass only the rows"
            f" to send (x[:{sum(chosen)}])"
        )
    return chosen


def _read_splits(splits: Splits) -> tuple[int, ...]:
    if isinstance(splits, torch.Tensor):
        if splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1:
            raise ValueError(
                f"splits are {splits.dtype} of shape {list(splits.shape)}; give integers, or a tensor of int32 or int64"
                " of one dimension"
            )
        return tuple(splits.tolist())
    try:
        return tuple([split.__index__() for split in splits])
    except (AttributeError, TypeError):
        raise ValueError(f"splits are {splits!r}; give integers, or a tensor of int32 or int64") from None
