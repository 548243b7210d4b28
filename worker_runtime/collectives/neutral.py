"""The part of a joined rank in operations that it has not submitted: it contributes neutral elements."""

from collections.abc import Sequence

import torch

from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.dtypes import choose_wire_dtype, find_dtype, make_neutral_value
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Signature, make_title
from worker_runtime.groups.torch_groups import TorchGroup, Work


class _Neutral(Operation[object]):
    """Runs another operation, or none, and discards its result.

    Args:
        release: the release of an operation that this rank has not submitted.
        substitute: the other operation; None for none.
    """

    def __init__(self, release: Release, substitute: Operation[object] | None) -> None:
        self.request = release.request
        self._substitute = substitute

    def start(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """Start the other operation."""
        if self._substitute is None:
            return ()
        return self._substitute.start(group, release)

    def finish(self, release: Release, payload: memoryview) -> object:
        """Return nothing."""


def make_neutral(release: Release, rank: int, device: torch.device | None = None) -> Operation[object]:
    """The operation of a joined rank for a release that it has not submitted.

    It contributes neutral elements to an ALLREDUCE (0, 1, infinity, or the largest or smallest integer), no rows to an
    ALLGATHER, and nothing where the data are sent as payload.

    Args:
        release: the release.
        rank: this rank.
        device: the device for its tensors; None for the current device of the signature's type.

    Raises:
        ValueError: joined ranks cannot take part in this kind of operation.
    """
    signature = release.request.signature
    among = Members(release.request.process_set, release.members, rank)
    device = device or torch.device(signature.device)
    if signature.payload_dtype or signature.kind is Kind.COMMIT:
        return _Neutral(release, None)
    if signature.kind is Kind.ALLREDUCE and signature.reduction is not None:
        return _Neutral(release, _make_allreduce(signature, signature.reduction, among, release.request.name, device))
    if signature.kind is Kind.ALLGATHER and signature.tolerates_joined:
        tensors = [
            torch.empty((0, *shape), dtype=find_dtype(dtype), device=device)
            for dtype, shape in zip(signature.dtypes, signature.shapes, strict=True)
        ]
        return _Neutral(release, Allgather(tensors, among, release.request.name))
    raise ValueError(f"{make_title(release.request.name)} is not supported with Join at this time")


def _make_allreduce(
    signature: Signature, reduction: Reduction, among: Members, name: str, device: torch.device
) -> Allreduce | Adasum:
    tensors = []
    for dtype_name, shape in zip(signature.dtypes, signature.shapes, strict=True):
        dtype = choose_wire_dtype(find_dtype(dtype_name), reduction, in_request=False)
        tensors.append(torch.full(shape, make_neutral_value(dtype, reduction), dtype=dtype, device=device))
    # Without the factors, so that the values stay neutral. The factors do not change the wire dtype.
    how = Combination(reduction)
    if reduction is Reduction.ADASUM:
        return Adasum(tensors, how, among, name)
    return Allreduce(tensors, how, among, name)
