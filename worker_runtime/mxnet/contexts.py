"""A gradient that lies on several contexts of one worker: its parts are summed before, and are alike afterwards.

Everything here is enqueued, and nothing is waited for: MXNet's engine keeps the order.
"""

from collections.abc import Sequence

import mxnet as mx


def gather(parts: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """The sum of a gradient's parts as a dense array on the first one's context.

    Args:
        parts: one for each context, of one shape and dtype, dense or sparse.

    Returns:
        The first part itself, with the others added, where it is dense; else a new array.
    """
    total = _make_dense(parts[0])
    for part in parts[1:]:
        total += _make_dense(part).as_in_context(total.context)
    return total


def scatter(total: mx.nd.NDArray, parts: Sequence[mx.nd.NDArray]) -> None:
    """Give all parts of a gradient the values of `total`, which `gather` has made of them."""
    for part in parts:
        if part is not total:
            converted = total if part.stype == total.stype else total.tostype(part.stype)  # which mx.np has not
            converted.copyto(part)


def _make_dense(array: mx.nd.NDArray) -> mx.nd.NDArray:
    return array if array.stype == "default" else array.tostype("default")
