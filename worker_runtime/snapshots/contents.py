"""A state as bytes: the data of its tensors one after the other, and a description of all else.

A state is nested dicts, lists and tuples, whose leaves are tensors and other objects. Its frame is the containers, with
their keys, and which leaves are tensors. The frame is the same from one save to the next, so it is pickled once. The
other objects are pickled each time. Tensors that are not plain (sparse ones, say) are pickled with these.
"""

import copy
import hashlib
import io
import pickle
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from worker_runtime.rendezvous import reduce_tensor
from worker_runtime.snapshots.known_states import Known
from worker_runtime.snapshots.memory import align
from worker_runtime.snapshots.sharded import find_sharded

_DTYPE, _SHAPE, _LAYOUT, _BYTES = map(attrgetter, ("dtype", "shape", "layout", "nbytes"))
_FEW = 8  # so many items of a dict are looked at one by one
_DICTS = frozenset({dict, OrderedDict})
_LISTS = frozenset({list, tuple})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_SCALARS = frozenset({bool, float, int, str, type(None)})


class ShardedStateError(Exception):
    """A state has a part of a tensor that lies on several ranks.

    Args:
        kind: the class of the tensor.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class _Placeholder(NamedTuple):
    """Stands for a leaf in the frame.

    number: of the leaf, among the tensors or among the other leaves.
    """

    is_tensor: bool
    number: int
    is_on_device: bool = False


class _Pickler(pickle.Pickler):
    """Refuses tensors that lie on several ranks, and pickles dtypes whose pickles torch cannot load."""

    def persistent_id(self, obj: Any) -> None:
        """See `pickle.Pickler`.

        Raises:
            ShardedStateError: it is such a tensor.
        """
        if isinstance(obj, torch.Tensor) and (kind := find_sharded(obj)) is not None:
            raise ShardedStateError(kind)

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        return reduce_tensor(obj)


class Row(NamedTuple):
    """How a tensor lies in memory.

    start: the byte at which it begins.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Packer:
    """Packs states of one form again and again, and remembers what depends on the form alone.

    table: a row for each tensor; another form has another list.
    data_bytes: how long the data of all tensors are.
    layout: a hash of the names, dtypes and shapes.
    """

    def __init__(self) -> None:
        self._forms: list[Any] = []
        self._sizes: list[Any] = []
        self._is_plain = True  # all tensors are
        self._frame = b""
        self.data_bytes = 0
        self.layout = b""
        self.table: list[Row] = []

    def pack(self, states: Mapping[str, Any], known: Iterable[Known] = ()) -> tuple[bytes, list[torch.Tensor]]:
        """The description of these states, and their tensors, which are not copied.

        Args:
            states: by name.
            known: parts of the states that are not looked at again.

        Raises:
            ShardedStateError: a tensor lies on several ranks.
            Exception: an object cannot be pickled.
        """
        structure: list[Any] = []
        tensors: list[torch.Tensor] = []
        others: list[Any] = []
        parts = {id(each.value): each for each in known}
        _collect(dict(states), structure, tensors, others, parts)
        # Of tensors that are the same objects, all that can change without an error of the copy.
        sizes: list[Any] = []
        if sum(len(part.tensors) for part in parts.values()) == len(tensors):
            sizes = [structure, array("q", map(_BYTES, tensors)), [*map(_DTYPE, tensors)]]
        if not sizes or sizes != self._sizes:
            self._sizes = sizes
            self._note_form(states, structure, tensors)
        if not self._is_plain:
            tensors, others = [], []
            _separate(dict(states), tensors, others)

        return pickle.dumps((self._frame, _dump(others))), tensors

    def _note_form(self, states: Mapping[str, Any], structure: list[Any], tensors: list[torch.Tensor]) -> None:
        """Compute what depends on the form, if that has changed."""
        forms = [structure, [*map(_DTYPE, tensors)], [*map(_SHAPE, tensors)], [*map(_LAYOUT, tensors)]]
        if self.layout and forms == self._forms:
            return
        self._forms = forms
        plain = [each for each in tensors if _is_plain(each)]
        self._is_plain = len(plain) == len(tensors)
        self.table, self.data_bytes = _arrange(plain)
        self._frame = pickle.dumps((_make_frame(dict(states), [0, 0]), self.table))
        text = repr([list(states), [(str(each.dtype), tuple(each.shape)) for each in tensors]])
        self.layout = hashlib.blake2b(text.encode(), digest_size=16).digest()

    def view(self, memory: Any) -> list[torch.Tensor]:
        """Tensors of the packed form whose data are this memory."""
        return _view(memory, self.table, self.data_bytes)


def unpack(description: bytes, memory: Any, to_device: Sequence[str]) -> dict[str, Any]:
    """The states of a description, with tensors of their own.

    Args:
        description: of `Packer.pack`.
        memory: the data of the tensors.
        to_device: the names of values that no object loads: their tensors return to the device.
    """
    frame, others = pickle.loads(description)  # noqa: S301 - this job's own program has written it
    states, table = pickle.loads(frame)  # noqa: S301 - this job's own program has written it
    leaves = pickle.loads(others)  # noqa: S301 - this job's own program has written it
    size = max((row.start + row.nbytes for row in table), default=0)
    tensors = [tensor.clone() for tensor in _view(memory, table, size)]
    return {
        name: _fill(state, tensors, leaves, on_device=name in to_device and torch.cuda.is_available())
        for name, state in states.items()
    }


def _collect(
    value: Any, structure: list[Any], tensors: list[torch.Tensor], others: list[Any], known: Mapping[int, Known]
) -> None:
    """Add what a state consists of: its containers with their keys, its tensors, its other leaves.

    In the structure each container and each other leaf stands with the number of the tensors before it.
    """
    kind = type(value)
    if kind in _DICTS:
        if (part := known.get(id(value))) is not None:
            structure += (part.number, len(tensors))
            tensors += part.tensors
            return
        structure += (kind, len(tensors), *value)
        # Most items are tensors, and a call for each would take half of the time.
        if len(value) > _FEW and _TENSORS.issuperset(map(type, value.values())):
            tensors += value.values()
            return
        for item in value.values():
            if type(item) in _TENSORS:
                tensors.append(item)
            else:
                _collect(item, structure, tensors, others, known)
    elif kind in _LISTS and not _has_only_scalars(value):
        structure += (kind, len(tensors), len(value))
        for item in value:
            _collect(item, structure, tensors, others, known)
    elif kind in _TENSORS:
        tensors.append(value)
    else:
        structure.append(len(tensors))
        others.append(value)


def _has_only_scalars(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list has neither tensors nor containers: it is pickled as it is."""
    return _SCALARS.issuperset(map(type, value))


def _dump(others: list[Any]) -> bytes:
    """Pickle what is no tensor."""
    if all(type(each) in _SCALARS or (type(each) in _LISTS and _has_only_scalars(each)) for each in others):
        return pickle.dumps(others, pickle.HIGHEST_PROTOCOL)
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(others)
    return file.getvalue()


def find_unpicklable(values: Mapping[str, Any]) -> str:
    """The name of the first value that cannot be pickled; "the state" if each can be alone."""
    for name, value in values.items():
        try:
            _dump([value])
        except Exception:  # noqa: BLE001 - the own code of the value runs here
            return name
    return "the state"


def _is_plain(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_quantized


def _make_frame(value: Any, counts: list[int]) -> Any:
    """The state with placeholders instead of its leaves, which are counted in the order of `_separate`."""
    kind = type(value)
    if kind in _DICTS:
        frame = copy.copy(value)  # keeps the attributes of a module's state_dict
        for key, item in value.items():
            frame[key] = _make_frame(item, counts)
        return frame
    if kind in _LISTS and not _has_only_scalars(value):
        return kind([_make_frame(item, counts) for item in value])

    is_tensor = kind in _TENSORS and _is_plain(value)
    number = counts[is_tensor]
    counts[is_tensor] += 1
    return _Placeholder(is_tensor, number, is_on_device=is_tensor and not value.is_cpu)


def _separate(value: Any, tensors: list[torch.Tensor], others: list[Any]) -> None:
    """Add the leaves of a state as `_collect` does, with tensors that are not plain among the other leaves."""
    kind = type(value)
    if kind in _DICTS:
        value = list(value.values())
    elif kind not in _LISTS or _has_only_scalars(value):
        if kind in _TENSORS and _is_plain(value):
            tensors.append(value)
        else:
            others.append(value)
        return
    for item in value:
        _separate(item, tensors, others)


def _fill(frame: Any, tensors: Sequence[torch.Tensor], others: Sequence[Any], *, on_device: bool) -> Any:
    """Put the leaves into a frame, which becomes the state."""
    if isinstance(frame, _Placeholder):
        if not frame.is_tensor:
            return others[frame.number]
        tensor = tensors[frame.number]
        return tensor.cuda() if frame.is_on_device and on_device else tensor
    if isinstance(frame, dict):
        for key, item in frame.items():
            frame[key] = _fill(item, tensors, others, on_device=on_device)
        return frame
    return type(frame)([_fill(item, tensors, others, on_device=on_device) for item in frame])


def _arrange(tensors: Sequence[torch.Tensor]) -> tuple[list[Row], int]:
    """The row of each tensor, and the byte at which the last one ends."""
    table, end = [], 0
    for tensor in tensors:
        start = align(end)
        # In the tensor's own order, where it has no gaps: an optimizer is slower with states of another order.
        strides = torch.empty_like(tensor, device="meta").stride()
        table.append(Row(tensor.dtype, tuple(tensor.shape), strides, start))
        end = start + table[-1].nbytes
    return table, end


def _view(memory: Any, table: Sequence[Row], size: int) -> list[torch.Tensor]:
    if not size:
        return [torch.empty(row.shape, dtype=row.dtype, device="cpu") for row in table]
    whole = torch.frombuffer(memory, dtype=torch.uint8, count=size)
    return [
        whole[row.start : row.start + row.nbytes].view(row.dtype).as_strided(row.shape, row.strides) for row in table
    ]
