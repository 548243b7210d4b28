"""Small operations that travel together: packed by one call, and finished by one."""

from collections.abc import Sequence

from tests.worker_runtime.conversation import Echo
from worker_runtime.coordination.messages import pack, split
from worker_runtime.coordination.operation import Batcher, Handle
from worker_runtime.coordination.ordering.requests import Release
from worker_runtime.coordination.wire import Released
from worker_runtime.engine.engine import Engine


class Noting(Batcher):
    """Notes which operations came together; operations whose title has a "!" cannot be finished together."""

    def __init__(self) -> None:
        self.packed: list[str] = []
        self.unpacked: list[tuple[str, bytes]] = []

    def pack(self, operations: Sequence[Echo]) -> list[bytes]:
        """The payloads of the operations."""
        self.packed.append("".join(operation.title for operation in operations))
        return [operation.payload for operation in operations]

    def unpack(self, operations: Sequence[Echo], payload: memoryview) -> list[bytes]:
        """The titles of the operations."""
        titles = [operation.title for operation in operations]
        if "!" in titles:
            raise RuntimeError("it was changed meanwhile")
        self.unpacked.append(("".join(titles), bytes(payload)))
        return [title.encode() for title in titles]


def make(title: str, batcher: Batcher | None) -> Echo:
    operation = Echo(title, title.encode())
    operation.batcher = batcher
    return operation


def answer(operations: Sequence[Echo], *payloads: bytes) -> tuple[list[Handle[bytes]], list[str]]:
    """Answer operations; their handles, and the titles of those that were performed each by itself."""
    performed = list[str]()
    handles: list[Handle[bytes]] = [Handle(operation) for operation in operations]
    released = Released(7, 3, (1,), ((2,), (3,)), 4, tuple(map(len, payloads)), memoryview(b"".join(payloads)), 1)

    for each in split(released, handles, lambda number: (number, 1)):
        results = None if each.unpack is None else each.unpack()
        if results is None:
            for handle, release, payload in zip(each.handles, each.releases, each.payloads, strict=True):
                performed.append(handle.title)
                handle.begin(release, (), payload)
        else:
            for handle, release, result in zip(each.handles, each.releases, results, strict=True):
                handle.complete(release, result)
    assert [handle.release for handle in handles] == [
        Release(3 + place, operation.request, (0, 1), (1,), ((2,), (3,)), 4, 1)
        for place, operation in enumerate(operations)
    ]
    return handles, performed


def test_only_neighbours_with_one_batcher_are_packed_together() -> None:
    one, other = Noting(), Noting()
    titles = [("a", one), ("b", one), ("c", None), ("d", one), ("e", other), ("f", other), ("g", None), ("h", None)]
    assert pack([make(*each) for each in titles]) == [title.encode() for title, _ in titles]
    assert (one.packed, other.packed) == (["ab"], ["ef"])


def test_only_neighbours_with_one_batcher_are_finished_together_each_with_its_own_bytes() -> None:
    one = Noting()
    operations = [make("a", None), make("b", one), make("c", one), make("d", None), make("e", one)]
    handles, performed = answer(operations, b"1", b"22", b"333", b"", b"4")
    assert performed == ["a", "d", "e"]
    assert one.unpacked == [("bc", b"22333")]
    assert [Engine().wait(handle) for handle in handles] == [b"1", b"b", b"c", b"", b"4"]


def test_operations_that_cannot_be_finished_together_are_finished_one_by_one() -> None:
    one = Noting()
    handles, performed = answer([make("a", one), make("!", one)], b"1", b"2")
    assert performed == ["a", "!"]
    assert [Engine().wait(handle) for handle in handles] == [b"1", b"2"]
