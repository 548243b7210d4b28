"""Objects as bytes for other ranks, by cloudpickle."""

import io
import pickle
import sys
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import torch

from worker_runtime.errors import WrongArgumentError
from worker_runtime.rendezvous import reduce_tensor

_PART = (
    "a DTensor has another part on each rank, and another rank would take the part for its own; send the whole, "
    "x.full_tensor(), or the part as a tensor, x.to_local()"
)


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
    """Refuses a part of a tensor, and pickles dtypes whose pickles torch cannot load.

    A class of the script becomes the other rank's own class of that name, so that `isinstance` and `is` hold there.
    cloudpickle alone would make another class.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`.

        Raises:
            WrongArgumentError: it is a part of a tensor.
        """
        if isinstance(obj, torch.Tensor):
            if _is_part(obj):
                raise WrongArgumentError(_PART)
            if (made := reduce_tensor(obj)) is not NotImplemented:
                return made
        if isinstance(obj, type) and obj.__module__ == "__main__" and _find_in_script(obj.__qualname__) is obj:
            return _find_class, (obj.__qualname__, cloudpickle.dumps(obj))
        return super().reducer_override(obj)


def _find_in_script(name: str) -> object:
    value: object = sys.modules["__main__"]
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _find_class(name: str, pickled: bytes) -> object:
    """The script's class of this name; without one, that of the sender."""
    found = _find_in_script(name)
    return found if isinstance(found, type) else pickle.loads(pickled)  # noqa: S301 - a part of an authenticated pickle


def _is_part(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor that several ranks divide among them."""
    mesh = getattr(tensor, "device_mesh", None)
    placements = getattr(tensor, "placements", ())
    return mesh is not None and mesh.size() > 1 and not all(each.is_replicate() for each in placements)
