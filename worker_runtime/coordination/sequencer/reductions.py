"""Reduces payloads. The only module of the sequencer that needs NumPy; it is imported when first needed."""

from collections.abc import Sequence

import numpy as np

from worker_runtime.coordination.ordering.requests import Reduction

_COMBINE: dict[Reduction, np.ufunc] = {
    Reduction.AVERAGE: np.add,  # the ranks divide
    Reduction.SUM: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}


def reduce(dtype: str, reduction: Reduction, payloads: Sequence[bytes]) -> bytes:
    """Combine payloads elementwise, in rank order.

    Integers wrap around; bool is combined by or (sum, max) and by and (product, min); a NaN makes the result NaN.

    Args:
        dtype: NumPy's name of the elements' dtype; little-endian.
        reduction: the reduction, not ADASUM.
        payloads: the ranks' payloads in rank order, of equal lengths, at least one.
    """
    if len(payloads) == 1 or not payloads[0]:
        return payloads[0]
    combine = _COMBINE[reduction]
    elements = np.dtype(dtype).newbyteorder("<")
    first, second, *others = (np.frombuffer(payload, elements) for payload in payloads)
    with np.errstate(all="ignore"):  # an overflow shows as infinity in the result
        total = combine(first, second)
        for other in others:
            combine(total, other, out=total)
    result: bytes = total.tobytes()
    return result
