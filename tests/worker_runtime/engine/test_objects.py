"""Python objects on all ranks, and nothing unpickled that a worker has not sent."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api.functions import allgather_object, broadcast_object
from worker_runtime.engine import objects
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import ForgedObjectError, HorovodInternalError
from worker_runtime.membership import runtime


@pytest.mark.parametrize("root", [0, 1])
def test_the_roots_object_comes_to_all_and_is_itself_on_the_root(ranks: RankPool, root: int) -> None:
    """Horovod names the operation after the object's type, and hangs where ranks pass None."""

    def body() -> object:
        mine = {"rank": root, "tensor": torch.arange(3), "function": lambda x: x + 1} if hvd.rank() == root else None
        got = broadcast_object(mine, root)
        return got["rank"], got["tensor"].tolist(), got["function"](1), got is mine

    assert ranks.run(body) == [(root, [0, 1, 2], 2, rank == root) for rank in range(2)]


def test_a_world_of_one_broadcasts_its_own_object_and_gathers_a_copy(ranks: RankPool) -> None:
    def body() -> object:
        mine = [1]
        (copied,) = allgather_object(mine)
        return broadcast_object(mine, 0) is mine, copied == mine, copied is mine

    assert ranks.run(body, size=1) == [(True, True, False)]


def test_wrong_and_different_roots_are_refused(ranks: RankPool) -> None:
    def body() -> object:
        for root in (-1, 2):
            with pytest.raises(ValueError, match=rf"received invalid root rank {root} \(broadcast_object\)"):
                broadcast_object(1, root)
        with pytest.raises(HorovodInternalError, match=r"(?s)root rank 0.*root rank 1"):
            broadcast_object(1, hvd.rank())
        return broadcast_object(2, 1)

    assert ranks.run(body) == [2, 2]


@pytest.mark.parametrize("what", ["broadcast", "allgather"])
def test_bytes_without_the_jobs_key_are_not_unpickled(ranks: RankPool, what: str) -> None:
    def body() -> object:
        class Harm:
            def __reduce__(self) -> object:
                return setattr, (torch, "harmed", True)

        engine = runtime.RUNTIME.engine
        own, engine.key = engine.key, b"another key" if engine.rank == 1 else engine.key
        share = Harm() if engine.rank == 1 else None
        if what == "allgather":
            with pytest.raises(ForgedObjectError):
                objects.allgather_object(engine, share, "x")
        elif engine.rank == 0:
            with pytest.raises(ForgedObjectError, match=r"of rank 1 lacks this job's signature"):
                objects.broadcast_object(engine, share, 1, "x")
        else:
            objects.broadcast_object(engine, share, 1, "x")
        engine.key = own
        return hasattr(torch, "harmed") and engine.rank == 0, allgather_object(engine.rank), len(own) >= 32

    assert ranks.run(body) == [(False, [0, 1], True)] * 2


def test_an_object_under_another_name_or_of_another_rank_is_refused() -> None:
    engine = Engine()  # of a world of one
    message, _ = objects._pack(engine, "broadcast_object.a", "said", 0)
    assert objects._unpack(engine, "broadcast_object.a", message, 0) == "said"
    changed = message.clone()
    changed[-1] ^= 1
    for title, data, rank in (
        ("broadcast_object.b", message, 0),
        ("broadcast_object.a", message, 1),
        ("broadcast_object.a", changed, 0),
        ("broadcast_object.a", message[:5], 0),
    ):
        with pytest.raises(ForgedObjectError):
            objects._unpack(engine, title, data, rank)


class Unpicklable:
    """Says so itself."""

    def __reduce__(self) -> str:
        raise LookupError("not this one")


def test_an_object_that_cannot_be_pickled_is_reported_to_the_ranks_that_wait(ranks: RankPool) -> None:
    def body() -> object:
        value = Unpicklable() if hvd.rank() == 1 else 5
        reported = []
        for send in (lambda: broadcast_object(value, 1), lambda: allgather_object(value)):
            with pytest.raises((LookupError, HorovodInternalError)) as caught:
                send()
            reported.append(f"{type(caught.value).__name__}: {caught.value}")
        return reported, allgather_object(hvd.rank())

    (reported, objects_of_0), (own, objects_of_1) = ranks.run(body)
    assert objects_of_0 == objects_of_1 == [0, 1]
    assert own == ["LookupError: not this one"] * 2
    cause = "rank 1 could not pickle its object (LookupError: not this one)"
    kinds = "broadcast_object", "allgather_object"
    assert reported == [f"UnpicklableError: {kind} 'noname.1': {cause}" for kind in kinds]


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_a_dtype_that_torch_alone_pickles_badly_comes_to_all(ranks: RankPool, name: str) -> None:
    dtype = getattr(torch, name)

    def body() -> object:
        tensors = [torch.arange(6).to(dtype).reshape(2, 3).t(), torch.tensor(2).to(dtype)]
        weight = torch.nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
        turned, single, kept = broadcast_object([*tensors, weight], 0)
        forms = [(each.dtype is dtype, type(each).__name__) for each in (turned, single, kept)]
        return forms, turned.float().tolist(), single.item(), kept.float().tolist()

    forms = [(True, "Tensor"), (True, "Tensor"), (True, "Parameter")]
    assert ranks.run(body) == [(forms, [[0, 3], [1, 4], [2, 5]], 2, [1, 1])] * 2
