"""The torch groups of process sets, and the generation that begins, ends and gives up what runs in them."""

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, call, patch

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.generation import Pending
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.engine import generation as generation_module
from worker_runtime.engine.generation import Generation
from worker_runtime.groups.gloo import Connections
from worker_runtime.groups.torch_groups import ALL_RANKS, CONNECT_LIMIT, TorchGroups, Work


def make_groups(rank: int = 0, error: RuntimeError | None = None) -> tuple[TorchGroups, Mock]:
    """Groups, and what makes each of them, or cannot."""
    make = Mock(side_effect=error or (lambda *_: (Mock(), Connections(frozenset()))))
    return TorchGroups(rank, make), make


def test_a_group_is_made_once_with_the_ranks_place_in_the_set() -> None:
    groups, make = make_groups(5)
    first = groups.find(3, (1, 5, 6))
    assert groups.find(3, (1, 5, 6)) is first
    assert groups.find(ALL_RANKS, tuple(range(8)), "cuda", timedelta(seconds=1)) is not first
    assert make.mock_calls == [
        call("set/3/cpu", 1, 3, "cpu", CONNECT_LIMIT),
        call("set/-1/cuda", 5, 8, "cuda", timedelta(seconds=1)),
    ]


def test_the_end_of_a_process_set_closes_the_groups_of_that_set_alone() -> None:
    groups, _ = make_groups()
    kept, ended = groups.find(1, (0, 1)), groups.find(2, (0, 1))
    groups.end(2)
    groups.end(7)  # which had none
    assert (kept.shutdown.called, ended.shutdown.called) == (False, True)
    groups.close()
    assert kept.shutdown.called


def test_a_group_that_was_being_made_during_an_interruption_is_aborted_and_no_other_one_is_made() -> None:
    """Else NCCL would try to connect it for half an hour, in the thread of the program."""
    connections = Mock()

    def make(*_: object) -> tuple[Mock, Mock]:
        assert groups.interrupt()
        return Mock(), connections

    groups = TorchGroups(0, make)
    with pytest.raises(RuntimeError, match="interrupted while it was made"):
        groups.find(1, (0, 1), "cuda")
    connections.shut_down.assert_called_once_with()
    with pytest.raises(RuntimeError, match="the group is closed"):
        groups.find(2, (0, 1), "cuda")


def test_all_groups_begin_to_abort_before_any_is_waited_for() -> None:
    """A group's abort may wait for kernels of another one."""
    done: list[str] = []

    def make(prefix: str, *_: object) -> tuple[Mock, Mock]:
        def await_end() -> bool:
            done.append("wait")
            return prefix == "set/2/cpu"

        return Mock(), Mock(shut_down=lambda: done.append("begin") or await_end)

    groups = TorchGroups(0, make)
    for version in (1, 2):
        groups.find(version, (0, 1))
    assert not groups.interrupt()
    assert done == ["begin", "begin", "wait", "wait"]


def test_closed_groups_make_no_more() -> None:
    groups, _ = make_groups()
    groups.close()
    with pytest.raises(RuntimeError, match="the group is closed"):
        groups.find(ALL_RANKS, (0, 1))


def test_a_group_that_could_not_be_made_is_tried_again() -> None:
    groups, make = make_groups(error=RuntimeError("no connection"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no connection"):
            groups.find(ALL_RANKS, (0, 1))
    assert make.call_count == 2


def test_abandoned_groups_are_never_ended() -> None:
    groups, _ = make_groups()
    group = groups.find(ALL_RANKS, (0, 1))
    groups.abandon()
    groups.close()
    assert not group.shutdown.called


def test_overlapping_sets_communicate_in_crossed_orders_and_leave_no_connection(ranks: RankPool) -> None:
    def body() -> object:
        from worker_runtime.membership.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

        pairs = [hvd.add_process_set(pair) for pair in ((0, 1), (1, 2), (0, 2))]
        mine = [pair for pair in pairs if hvd.rank() in (pair.ranks or ())]
        if hvd.rank() == 1:
            mine.reverse()
        large = torch.full((100_000,), float(hvd.rank()))
        handles = [hvd.allreduce_async(large, op=hvd.Sum, name="x", process_set=pair) for pair in mine]
        sums = {tuple(pair.ranks or ()): hvd.synchronize(h)[0].item() for pair, h in zip(mine, handles, strict=True)}
        groups = RUNTIME.engine.current._groups
        counts = sorted(len(connections._names) for _, connections in groups._groups.values())
        for pair in pairs:
            hvd.remove_process_set(pair)
        return sums, counts, len(groups._groups)

    expected = {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 2.0}
    for rank, (sums, counts, left) in enumerate(ranks.run(body, size=3)):
        assert sums == {pair: total for pair, total in expected.items() if rank in pair}
        assert counts == [1, 1, 2]
        assert left == 1


class _Recorded(Operation[None]):
    """Begins the works it is given, or raises."""

    def __init__(self, request: Request, works: Sequence[Work] | BaseException = ()) -> None:
        self.request = request
        self._works = works

    def start(self, *_: object) -> Sequence[Work]:
        if isinstance(self._works, BaseException):
            raise self._works
        return self._works

    def finish(self, *_: object) -> None:
        pass


def make_release(kind: Kind, *, sizes: tuple[int, ...] = (), value: int = 0, index: int = 0) -> Release:
    signature = Signature(kind, ("float32",), ((2,),), Reduction.SUM)
    request = Request(index, f"{kind.name.lower()}.x", signature)
    return Release(index, request, (0, 1), sizes=(sizes, sizes), value=value)


BARRIER = make_release(Kind.BARRIER)._replace(request=make_release(Kind.BARRIER).request._replace(process_set=1))


def make_generation(groups: TorchGroups | None, size: int) -> Generation:
    """A generation of these groups, as rank 0 has it."""
    generation = Generation(1, 0, size)
    generation._groups = groups
    return generation


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not ended is not waited for."""
    monkeypatch.setattr(generation_module, "INTERRUPT_LIMIT_SECONDS", 0.0)


def test_an_operation_that_cannot_begin_is_an_error_without_frames() -> None:
    generation = make_generation(Mock(**{"find.side_effect": RuntimeError("no connection")}), 2)
    release = make_release(Kind.BARRIER)
    error = generation.start(_Recorded(release.request), release)
    assert isinstance(error, RuntimeError)
    assert error.__traceback__ is None
    assert generation.take_part(make_release(Kind.ALLREDUCE)) is error


def test_in_a_world_of_one_nothing_communicates() -> None:
    generation = make_generation(None, 1)
    release = make_release(Kind.BARRIER)
    assert generation.start(_Recorded(release.request, (Pending(),)), release) == ()
    generation.interrupt()
    generation.abandon()
    assert generation.close([])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("is_done", "end"), [(True, call.close()), (False, call.abandon())])
@pytest.mark.parametrize("is_kept", [True, False])
def test_groups_are_closed_when_all_has_ended_and_else_given_up(*, is_done: bool, end: object, is_kept: bool) -> None:
    """Also what a failed operation leaves behind, for which no thread waits."""
    groups, works = Mock(), (Pending(is_done=True), Pending(is_done=is_done))
    generation = make_generation(groups, 2)
    if is_kept:
        generation.keep(works)
    assert generation.close([] if is_kept else [works]) is is_done
    assert generation.close([])  # a second time there is nothing left
    assert groups.mock_calls == [end]


def test_a_joined_rank_connects_to_no_rank_for_a_payload() -> None:
    """The others do not come: their data have travelled inside the requests."""
    groups = Mock()
    signature = Signature(Kind.ALLREDUCE, ("float32",), ((2,),), Reduction.SUM, payload_dtype="float32")
    release = Release(0, Request(0, "allreduce.x", signature), (0, 1), joined=(0,))
    assert make_generation(groups, 2).take_part(release) is None
    assert groups.mock_calls == []


def test_data_of_a_joined_rank_stays_in_memory_until_it_is_sent() -> None:
    """A kernel may read it later: memory that is freed before belongs to the next tensor of its stream."""
    made: list[weakref.ref[Operation[object]]] = []

    def make(*arguments: Any) -> Operation[object]:
        operation = make_neutral(*arguments)
        made.append(weakref.ref(operation))
        return operation

    sending = Pending()
    groups = Mock(**{"find.return_value.allreduce.return_value": sending})
    generation = make_generation(groups, 2)
    signature = Signature(Kind.ALLREDUCE, ("float32",), ((100_000,),), Reduction.SUM)
    release = Release(0, Request(0, "allreduce.x", signature), (0, 1), joined=(0,))
    with patch.object(generation_module, "make_neutral", make):
        generation.take_part(release)
        generation.take_part(release)
        assert [each() is None for each in made] == [False, False]
        sending.is_done = True
        generation.take_part(release)
    assert [each() is None for each in made] == [True, True, False]


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_groups_in_which_something_unknown_was_begun_are_given_up(error: BaseException) -> None:
    groups, release = Mock(), make_release(Kind.BARRIER)
    generation = make_generation(groups, 2)
    operation = _Recorded(release.request, error)
    if isinstance(error, RuntimeError):
        assert generation.start(operation, release) is error
    else:
        with pytest.raises(KeyboardInterrupt):
            generation.start(operation, release)
    assert not generation.close([])
    assert groups.mock_calls == [call.find(ALL_RANKS, (0, 1), "cpu"), call.abandon()]


def test_an_operation_of_a_joined_rank_is_given_up_when_a_signal_s_handler_raises() -> None:
    groups = Mock()
    generation = make_generation(groups, 2)
    with (
        patch.object(generation, "start", return_value=(Pending(),)),
        patch.object(generation_module, "isinstance", side_effect=KeyboardInterrupt, create=True),
        pytest.raises(KeyboardInterrupt),
    ):
        generation.take_part(make_release(Kind.ALLREDUCE))
    assert not generation.close([])
    assert groups.mock_calls == [call.abandon()]
