"""What becomes of the data that travel inside questions: the answer's payload, made of those of all ranks.

Small operations come by the hundred in one message, and NumPy takes longer to be called than to add 64 bytes. So what
is released together and combined alike is joined, per rank, and combined by one call.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate

from worker_runtime.coordination.ordering.questions import Kind, Reduction, Release, Signature, fits_payload
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
FREE_BYTES = 4096  # payloads that no set is too large for
_WIDENED = 8  # an element may be combined as one that is so many times as long
_FUSED_BYTES = 16 * 1024  # above that joining costs more than a call
_ALLREDUCE, _BROADCAST, _ALLGATHER = Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER

# A question of a rank: the rank, the number that it calls it by, the payload, and when it came by the monotonic clock.
# A bare tuple, since there may be a thousand in one message.
Entry = tuple[int, int, bytes, float]


class UnequalPayloadError(Exception):
    """A rank's payload is not as long as its signature promises; says what came."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


def check_signature(signature: Signature) -> None:
    """Make sure that payloads of this signature can be combined, and have ready what that takes.

    Raises:
        ProtocolError: they cannot.
    """
    if not signature.payload_dtype:
        return
    kind, reduction = signature.kind, signature.reduction
    if kind is _ALLREDUCE:
        if signature.payload_dtype not in _ITEM_BYTES or reduction is None or reduction is Reduction.ADASUM:
            raise ProtocolError(f"no payload of {signature.payload_dtype!r} is combined by {reduction!r}")
        import_module(
            "worker_runtime.coordination.sequencer.reductions"
        )  # takes 0.1 s the first time: not when ranks wait for it
    elif kind not in (_BROADCAST, _ALLGATHER) or (kind is _BROADCAST and signature.root is None):
        raise ProtocolError(f"{kind.name} with the root {signature.root} takes no payload")


def check_size(size: int, count_bytes: int) -> None:
    """Make sure that a question in a set of `size` members may carry so many bytes.

    Raises:
        ProtocolError: it may not, however much wider its elements are than the tensors'.
    """
    if not fits_payload(max(1, size), count_bytes // _WIDENED):
        raise ProtocolError(f"{count_bytes} bytes are too many to travel inside a question of {size} ranks")


def combine(released: Sequence[tuple[Release, Sequence[Entry]]]) -> list[bytes]:
    """The payload of each release's answer; b"" where none travels.

    Args:
        released: each with the questions that it answers, in the order of their ranks.

    Raises:
        UnequalPayloadError: a rank has sent another length than the first one.
    """
    results = [b""] * len(released)
    alike: dict[tuple[str, Reduction, int], list[tuple[int, list[bytes]]]] = {}
    for position, (release, asked) in enumerate(released):
        signature = release.question.signature
        if not signature.payload_dtype or not asked:
            continue
        payloads = [payload for _, _, payload, _ in asked]
        if signature.kind is _ALLGATHER:
            results[position] = _concatenate(release, payloads)
        elif signature.kind is _BROADCAST:
            results[position] = b"".join(payload for rank, _, payload, _ in asked if rank == signature.root)
        elif signature.reduction is not None:  # check_signature has seen to it
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
    """The rows of all ranks; b"" where one has sent none inside, since it has many: then all communicate."""
    sizes = release.sizes
    is_whole = len(payloads) == len(sizes) and all(
        payload or not any(rows) for payload, rows in zip(payloads, sizes, strict=True)
    )
    return b"".join(payloads) if is_whole else b""


def _reduce(dtype: str, reduction: Reduction, group: list[tuple[int, list[bytes]]], results: list[bytes]) -> None:
    """Combine what is combined alike and comes from equally many ranks, the small ones by one call."""
    from worker_runtime.coordination.sequencer.reductions import reduce  # noqa: PLC0415 - imports NumPy

    fused = [] if len(group) == 1 else [entry for entry in group if len(entry[1][0]) <= _FUSED_BYTES]
    if fused:
        rows = zip(*(payloads for _, payloads in fused), strict=True)  # one of each rank
        total = reduce(dtype, reduction, [b"".join(row) for row in rows])
        ends = list(accumulate(len(payloads[0]) for _, payloads in fused))
        for (position, _), start, end in zip(fused, [0, *ends], ends, strict=False):
            results[position] = total[start:end]
    for position, payloads in group:
        if not fused or len(payloads[0]) > _FUSED_BYTES:
            results[position] = reduce(dtype, reduction, payloads)


def _make_error(release: Release, asked: Sequence[Entry]) -> UnequalPayloadError:
    """Whose payload it is that does not fit."""
    question, (first, _, payload, _) = release.question, asked[0]
    for rank, _, other, _ in asked:
        if len(other) != len(payload):
            return UnequalPayloadError(
                rank, f"it sent {len(other)} bytes with {question.name!r}, and rank {first} sent {len(payload)}"
            )
    return UnequalPayloadError(
        first, f"it sent {len(payload)} bytes of {question.signature.payload_dtype} with {question.name!r}"
    )
