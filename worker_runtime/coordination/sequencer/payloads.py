"""The combination of payloads: the data that ranks send inside requests become the payload of the response.

A message may have hundreds of small operations, and a call of NumPy takes longer than adding 64 bytes. So payloads that
are released together, and combined in the same way, are concatenated per rank, and combined by one call.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate

from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Signature, fits_payload
from worker_runtime.coordination.wire import ProtocolError

_ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
FREE_BYTES = 4096  # a payload of this size is allowed in a set of any size
_WIDENED = 8  # the largest factor by which an element may be widened for the combination
_FUSED_BYTES = 16 * 1024  # above this size concatenation costs more than a call
_ALLREDUCE, _BROADCAST, _ALLGATHER = Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER

# A request of a rank: the rank, the request's number, the payload, and its time of arrival on the monotonic clock.
# A plain tuple, since a message may have a thousand.
Entry = tuple[int, int, bytes, float]


class UnequalPayloadError(Exception):
    """The length of a rank's payload does not fit its signature."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


def check_signature(signature: Signature) -> None:
    """Check that payloads of this signature can be combined, and import what is needed for it.

    Raises:
        ProtocolError: they cannot be combined.
    """
    if not signature.payload_dtype:
        return
    kind, reduction = signature.kind, signature.reduction
    if kind is _ALLREDUCE:
        if signature.payload_dtype not in _ITEM_BYTES or reduction is None or reduction is Reduction.ADASUM:
            raise ProtocolError(f"payloads of {signature.payload_dtype!r} cannot be combined by {reduction!r}")
        import_module(
            "worker_runtime.coordination.sequencer.reductions"
        )  # takes 0.1 s the first time: not when ranks wait for it
    elif kind not in (_BROADCAST, _ALLGATHER) or (kind is _BROADCAST and signature.root is None):
        raise ProtocolError(f"{kind.name} with the root {signature.root} takes no payload")


def check_size(size: int, count_bytes: int) -> None:
    """Check that a request in a set of `size` members may have a payload of this size.

    Raises:
        ProtocolError: the payload is too large, even with widened elements.
    """
    if not fits_payload(max(1, size), count_bytes // _WIDENED):
        raise ProtocolError(f"a payload of {count_bytes} bytes is too large for a set of {size} ranks")


def combine(released: Sequence[tuple[Release, Sequence[Entry]]]) -> list[bytes]:
    """The payload of each release's response; b"" for none.

    Args:
        released: the releases, each with the requests that it answers, in the order of their ranks.

    Raises:
        UnequalPayloadError: a rank's payload has another length than the first one's.
    """
    results = [b""] * len(released)
    alike: dict[tuple[str, Reduction, int], list[tuple[int, list[bytes]]]] = {}
    for position, (release, asked) in enumerate(released):
        signature = release.request.signature
        if not signature.payload_dtype or not asked:
            continue
        payloads = [payload for _, _, payload, _ in asked]
        if signature.kind is _ALLGATHER:
            results[position] = _concatenate(release, payloads)
        elif signature.kind is _BROADCAST:
            results[position] = b"".join(payload for rank, _, payload, _ in asked if rank == signature.root)
        elif signature.reduction is not None:  # always true: `check_signature` has checked it
            count = len(payloads[0])
            if count % _ITEM_BYTES[signature.payload_dtype]:
                raise _make_error(release, asked)
            for payload in payloads:
                if len(payload) != count:
                    raise _make_error(release, asked)
            key = signature.payload_dtype, signature.reduction, len(payloads)
            alike.setdefault(key, []).append((position, payloads))

    for (dtype, reduction, _), group in alike.items():
        _reduce(dtype, reduction, group, results)
    return results


def _concatenate(release: Release, payloads: Sequence[bytes]) -> bytes:
    """The rows of all ranks; b"" if a rank has too many rows to send inside: then all communicate."""
    sizes = release.sizes
    is_whole = len(payloads) == len(sizes) and all(
        payload or not any(rows) for payload, rows in zip(payloads, sizes, strict=True)
    )
    return b"".join(payloads) if is_whole else b""


def _reduce(dtype: str, reduction: Reduction, group: list[tuple[int, list[bytes]]], results: list[bytes]) -> None:
    """Combine payloads of one dtype and reduction from equally many ranks, the small ones by one call."""
    from worker_runtime.coordination.sequencer.reductions import reduce  # noqa: PLC0415 - imports NumPy

    fused = [] if len(group) == 1 else [entry for entry in group if len(entry[1][0]) <= _FUSED_BYTES]
    if fused:
        rows = zip(*(payloads for _, payloads in fused), strict=True)  # a row has the payloads of one rank
        total = reduce(dtype, reduction, [b"".join(row) for row in rows])
        ends = list(accumulate(len(payloads[0]) for _, payloads in fused))
        for (position, _), start, end in zip(fused, [0, *ends], ends, strict=False):
            results[position] = total[start:end]
    for position, payloads in group:
        if not fused or len(payloads[0]) > _FUSED_BYTES:
            results[position] = reduce(dtype, reduction, payloads)


def _make_error(release: Release, asked: Sequence[Entry]) -> UnequalPayloadError:
    """Whose payload it is that does not fit."""
    request, (first, _, payload, _) = release.request, asked[0]
    for rank, _, other, _ in asked:
        if len(other) != len(payload):
            return UnequalPayloadError(
                rank, f"it sent {len(other)} bytes with {request.name!r}, and rank {first} sent {len(payload)}"
            )
    return UnequalPayloadError(
        first, f"it sent {len(payload)} bytes of {request.signature.payload_dtype} with {request.name!r}"
    )
