"""Adds up the ranks' payloads. The only module of the sequencer that needs NumPy, so imported when first needed."""

from collections.abc import Sequence

import numpy as np

from worker_runtime.coordination.ordering.questions import Reduction

_COMBINE: dict[Reduction, np.ufunc] = {
    Reduction.AVERAGE: np.add,  # the ranks know by how many to divide
    Reduction.SUM: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}


def reduce(dtype: str, reduction: Reduction, payloads: Sequence[bytes]) -> bytes:
    """Combine payloads elementwise, the first two, then the third with that, and so on: so the result is one.

    Integers wrap around, bool is combined as logical or (sum, max) and and (product, min), NaN spreads.

    Args:
        dtype: of the elements, by NumPy's name; little-endian.
        reduction: how to combine; ADASUM is none of these.
        payloads: of the ranks in their order, of equal lengths, at least one.
    """
    if len(payloads) == 1 or not payloads[0]:
        return payloads[0]
    combine = _COMBINE[reduction]
    elements = np.dtype(dtype).newbyteorder("<")
    first, second, *others = (np.frombuffer(payload, elements) for payload in payloads)
    with np.errstate(all="ignore"):  # the sum itself shows that it is infinite
        total = combine(first, second)
        for other in others:
            combine(total, other, out=total)
    result: bytes = total.tobytes()
    return result
