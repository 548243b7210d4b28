"""Objects on all ranks, and nothing unpickled that a worker has not sent."""

import pytest
import torch

from tests.worker_runtime.ranks import RankPool
from worker_runtime import objects, runtime
from worker_runtime.errors import ForgedObjectError, HorovodInternalError


def test_the_roots_object_comes_to_all_and_is_itself_on_the_root(ranks: RankPool) -> None:
    def body(root: int) -> object:
        mine = {"rank": runtime.RUNTIME.executor.rank, "tensor": torch.arange(3), "function": lambda x: x + 1}
        got = objects.broadcast_object(runtime.RUNTIME.executor, mine, root)
        return got["rank"], got["tensor"].tolist(), got["function"](1), got is mine

    for root in (0, 1):
        assert ranks.run(body, root) == [(root, [0, 1, 2], 2, rank == root) for rank in range(2)]


def test_names_need_not_come_from_the_objects(ranks: RankPool) -> None:
    """Horovod names the operation after the object's type, and hangs where ranks pass None."""

    def body() -> object:
        return objects.broadcast_object(
            runtime.RUNTIME.executor, "text" if runtime.RUNTIME.executor.rank == 0 else None, 0
        )

    assert ranks.run(body) == ["text"] * 2


def test_objects_of_all_ranks_are_in_their_order_and_of_any_size(ranks: RankPool) -> None:
    def body() -> object:
        mine = ["x" * 300_000 * runtime.RUNTIME.executor.rank]
        got = objects.allgather_object(runtime.RUNTIME.executor, mine, "all")
        return [len(each[0]) for each in got], got[runtime.RUNTIME.executor.rank] is mine

    assert ranks.run(body, size=3) == [([0, 300_000, 600_000], False)] * 3


def test_a_world_of_one_has_its_own_objects(ranks: RankPool) -> None:
    def body() -> object:
        mine = [1]
        (copied,) = objects.allgather_object(runtime.RUNTIME.executor, mine)
        return objects.broadcast_object(runtime.RUNTIME.executor, mine, 0) is mine, copied == mine, copied is mine

    assert ranks.run(body, size=1) == [(True, True, False)]


@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_is_not_there_is_an_error(ranks: RankPool, root: int) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root}"):
            objects.broadcast_object(runtime.RUNTIME.executor, 1, root)

    ranks.run(body)


def test_ranks_that_name_other_roots_are_told_so(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(HorovodInternalError, match=r"(?s)root rank 0.*root rank 1"):
            objects.broadcast_object(runtime.RUNTIME.executor, 1, runtime.RUNTIME.executor.rank)
        return objects.broadcast_object(runtime.RUNTIME.executor, 2, 1)

    assert ranks.run(body) == [2, 2]


@pytest.mark.parametrize("what", ["broadcast", "allgather"])
def test_what_comes_without_the_jobs_key_is_not_unpickled(ranks: RankPool, what: str) -> None:
    def body() -> object:
        class Harm:
            def __reduce__(self) -> object:
                return setattr, (torch, "harmed", True)

        executor = runtime.RUNTIME.executor
        own, executor.key = executor.key, b"another key" if executor.rank == 1 else executor.key
        share = Harm() if executor.rank == 1 else None
        if what == "broadcast":
            if executor.rank == 0:
                with pytest.raises(ForgedObjectError, match=r"of rank 1 does not carry this job's signature"):
                    objects.broadcast_object(executor, share, 1, "x")
            else:
                objects.broadcast_object(executor, share, 1, "x")
        else:
            with pytest.raises(ForgedObjectError):
                objects.allgather_object(executor, share, "x")
        executor.key = own
        return hasattr(torch, "harmed") and executor.rank == 0, objects.allgather_object(executor, executor.rank)

    assert ranks.run(body) == [(False, [0, 1])] * 2


def test_workers_of_a_job_have_a_key(ranks: RankPool) -> None:
    def body() -> object:
        return len(runtime.RUNTIME.executor.key)

    assert min(ranks.run(body)) >= 32


def test_what_was_said_under_another_name_or_by_another_rank_is_refused() -> None:
    from worker_runtime.executor import Executor  # noqa: PLC0415 - in a world of one

    executor = Executor()
    message, _ = objects._pack(executor, "broadcast_object.a", "said", 0)
    assert objects._unpack(executor, "broadcast_object.a", message, 0) == "said"
    for title, rank in (("broadcast_object.b", 0), ("broadcast_object.a", 1)):
        with pytest.raises(ForgedObjectError):
            objects._unpack(executor, title, message, rank)
    message[-1] ^= 1
    with pytest.raises(ForgedObjectError):
        objects._unpack(executor, "broadcast_object.a", message, 0)
    with pytest.raises(ForgedObjectError):
        objects._unpack(executor, "broadcast_object.a", message[:5], 0)


class Unpicklable:
    """Says so itself."""

    def __reduce__(self) -> str:
        raise LookupError("not this one")


def test_who_waits_for_an_object_that_cannot_be_pickled_is_told_why(ranks: RankPool) -> None:
    def body() -> object:
        executor = runtime.RUNTIME.executor
        value = Unpicklable() if executor.rank == 1 else 5
        told: list[str] = []
        for send in (
            lambda: objects.broadcast_object(executor, value, 1),
            lambda: objects.allgather_object(executor, value),
        ):
            try:
                send()
            except LookupError as error:
                told.append(f"own: {error}")
            except HorovodInternalError as error:
                told.append(str(error))
        return told, objects.allgather_object(executor, executor.rank)

    cause = "rank 1 could not pickle its object (LookupError: not this one)"
    assert ranks.run(body) == [
        ([f"broadcast_object 'noname.1': {cause}", f"allgather_object 'noname.1': {cause}"], [0, 1]),
        (["own: not this one"] * 2, [0, 1]),
    ]
