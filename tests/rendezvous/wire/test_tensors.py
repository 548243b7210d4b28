"""Pickles of tensors whose dtypes torch writes, and cannot load."""

import copyreg
import io
import pickle
from typing import Any

import pytest

from rendezvous.wire.tensors import reduce_tensor


class Pickler(pickle.Pickler):
    """Uses `reduce_tensor`."""

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        return reduce_tensor(obj)


def carry(value: object) -> tuple[Any, bytes]:
    """What comes of an object, and its pickle."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return pickle.loads(file.getvalue()), file.getvalue()  # noqa: S301 - our own


def test_a_tensor_keeps_whether_it_requires_a_gradient_and_its_pickle_needs_torch_alone() -> None:
    torch = pytest.importorskip("torch")
    for requires_grad in (False, True):
        found, pickled = carry(torch.ones(2).to(torch.float8_e5m2).requires_grad_(requires_grad))
        assert (found.dtype, found.requires_grad, found.float().tolist()) == (torch.float8_e5m2, requires_grad, [1, 1])
        assert b"rendezvous" not in pickled


def test_other_objects_are_left_to_pickle() -> None:
    torch = pytest.importorskip("torch")
    for value in (copyreg, torch.ones(2), torch.ones(2, dtype=torch.uint16, device="meta"), torch.nn.Linear):
        assert reduce_tensor(value) is NotImplemented
