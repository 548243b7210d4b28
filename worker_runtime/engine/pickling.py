"""Objects as bytes for other ranks, by cloudpickle."""

import io
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import torch

from worker_runtime.collectives.dtypes import COMPLEX, FLOATS, INTEGERS
from worker_runtime.errors import WrongArgumentError

_PART = (
    "a DTensor has another part on each rank, and another rank would take the part for its own; send the whole, "
    "x.full_tensor(), or the part as a tensor, x.to_local()"
)

_PICKLED_BY_TORCH = FLOATS | COMPLEX | INTEGERS | {torch.bool}
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dump(value: object, file: IO[bytes]) -> None:
    """Pickle an object.

    Raises:
        WrongArgumentError: it is or has a tensor of which each rank has another part.
        Exception: the error of pickling.
    """
    _Pickler(file).dump(value)


class _NullFile(io.RawIOBase):
    """A file that discards what is written."""

    def write(self, data: Any) -> int:
        """Return the number of bytes."""
        return len(data)


def find_pickling_error(value: object) -> str:
    """Why an object cannot be pickled; "" where it can."""
    try:
        dump(value, _NullFile())  # type: ignore[arg-type]  # only write() is called
    except Exception as error:  # noqa: BLE001 - the object's own code runs here
        return f"{type(error).__name__}: {error}"
    return ""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """Refuses a part of a tensor, and pickles dtypes whose pickles torch cannot load."""

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`.

        Raises:
            WrongArgumentError: it is a part of a tensor.
        """
        if isinstance(obj, torch.Tensor):
            if _is_part(obj):
                raise WrongArgumentError(_PART)
            if type(obj) is torch.Tensor and _is_unloadable(obj):
                numbers = obj.detach().view(_OF_SIZE[obj.dtype.itemsize])
                return _view_as, (numbers, obj.dtype, obj.requires_grad)
        return super().reducer_override(obj)


def _is_part(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor that several ranks divide among them."""
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", ())
    return mesh is not None and mesh.size() > 1 and not all(each.is_replicate() for each in placements)


def _is_unloadable(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
    return is_plain and tensor.dtype not in _PICKLED_BY_TORCH and tensor.device.type != "meta"


def _view_as(numbers: torch.Tensor, dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:  # noqa: FBT001 - of a pickle
    return numbers.view(dtype).requires_grad_(requires_grad)
