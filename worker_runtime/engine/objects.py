"""Python objects between workers: pickled by cloudpickle, and sent by a collective.

Unpickling can execute any code. So each object carries an HMAC of the generation's key over its name, sender and bytes,
and is unpickled only if the HMAC is right.
"""

import hashlib
import hmac
import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch

from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.buffers import view_memory
from worker_runtime.collectives.tensor_operation import read_root
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, make_title
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.pickling import dump
from worker_runtime.errors import ForgedObjectError, UnpicklableError

_HMAC_BYTES = hashlib.sha256().digest_size


def broadcast_object(
    engine: Engine,
    value: Any,
    root: int,
    name: str | None = None,
    process_set: int = GLOBAL_SET,
    *,
    kind: str = "broadcast_object",
    note: str = "",
) -> Any:
    """The root's object on every rank of a set: the object itself on the root, a copy elsewhere.

    It is an allgather in which only the root has rows, so that one operation sends the number of bytes too.

    Args:
        engine: the engine.
        value: the object; ignored on other ranks than the root.
        root: the root's rank in the job.
        name: the program's name; without one, calls are numbered.
        process_set: the set's number.
        kind: the name of the function that the program calls.
        note: a description that must be the same on all ranks.

    Raises:
        ValueError: the set is unknown, or this rank or the root is not in it.
        HorovodInternalError: the ranks have different roots or notes; the operation failed; the object has a wrong
            HMAC; or the root cannot pickle it.
        Exception: on the root, the error of pickling.
    """
    among = engine.find_members(process_set, kind)
    root = read_root(kind, root, among.ranks)
    is_root = among.rank == root
    if is_root and among.size == 1:
        return value
    title = engine.make_name(kind, name, process_set)
    data, error = torch.empty(0, dtype=torch.uint8, device="cpu"), None
    if is_root:
        data, error = _pack(engine, title, value, root)
    ((gathered, _),) = engine.run(_RootRows(data, root, among, title, note))
    if error is not None:
        raise error
    if not is_root:
        return _unpack(engine, title, gathered, root)
    return value


def allgather_object(
    engine: Engine,
    value: Any,
    name: str | None = None,
    process_set: int = GLOBAL_SET,
) -> list[Any]:
    """Copies of the objects of all ranks of a set, in rank order.

    Args:
        engine: the engine.
        value: this rank's object.
        name: the program's name; without one, calls are numbered.
        process_set: the set's number.

    Raises:
        ValueError: the set is unknown, or this rank is not in it.
        HorovodInternalError: the operation failed; an object has a wrong HMAC; or another rank cannot pickle its
            object.
        Exception: the error of pickling this rank's object.
    """
    among = engine.find_members(process_set, "allgather_object")
    title = engine.make_name("allgather_object", name, process_set)
    data, error = _pack(engine, title, value, among.rank)
    ((gathered, counts),) = engine.run(Allgather((data,), among, title))
    if error is not None:
        raise error
    parts = gathered.split_with_sizes(counts)
    return [_unpack(engine, title, part, rank) for part, rank in zip(parts, among.ranks, strict=True)]


class _Unpicklable(NamedTuple):
    """Sent in place of an object that cannot be pickled: the other ranks wait for an object."""

    cause: str


class _RootRows(Allgather):
    """An allgather in which only the root has rows; it can run again with any survivors that include the root.

    Args:
        data: the rows of the root; empty on the other ranks.
        root: its rank.
        among: the ranks.
        name: the full name, the same on all ranks.
        note: what else must be the same on all ranks.
    """

    def __init__(self, data: torch.Tensor, root: int, among: Members, name: str, note: str) -> None:
        super().__init__((data,), among, name, note=f"root rank {root}{', ' * bool(note)}{note}")
        self._data = data
        self._root = root
        self._note = note

    @property
    def needed_rank(self) -> int:
        """The root."""
        return self._root

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return "": see `Operation`."""
        del is_begun
        return ""

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        return type(self)(self._data, ranks[self._root], among, self.request.name, self._note)


def _pack(engine: Engine, title: str, value: object, rank: int) -> tuple[torch.Tensor, Exception | None]:
    """The HMAC and the pickled object as a tensor of bytes; after an error of pickling, the error in its place."""
    stream = io.BytesIO()
    stream.write(bytes(_HMAC_BYTES))
    try:
        dump(value, stream)
    except Exception as error:  # noqa: BLE001 - the object's own code runs here
        data, _ = _pack(engine, title, _Unpicklable(f"{type(error).__name__}: {error}"), rank)
        return data, error
    message = stream.getbuffer()
    message[:_HMAC_BYTES] = _make_hmac(engine.key, title, rank, message[_HMAC_BYTES:])
    return torch.frombuffer(message, dtype=torch.uint8), None


def _unpack(engine: Engine, title: str, data: torch.Tensor, rank: int) -> Any:
    message = view_memory(data)
    received, pickled = message[:_HMAC_BYTES], message[_HMAC_BYTES:]
    if not hmac.compare_digest(received, _make_hmac(engine.key, title, rank, pickled)):
        raise ForgedObjectError(title, rank)
    value = pickle.loads(pickled)  # noqa: S301 - its HMAC proves that a worker of this job has sent it
    if isinstance(value, _Unpicklable):
        raise UnpicklableError(make_title(title), rank, value.cause)
    return value


def _make_hmac(key: bytes, title: str, rank: int, pickled: memoryview) -> bytes:
    """The HMAC of an object's name, sender and bytes."""
    code = hmac.new(key, f"{title} of rank {rank}\0".encode(), hashlib.sha256)
    code.update(pickled)
    return code.digest()
