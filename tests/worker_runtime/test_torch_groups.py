"""The torch groups of process sets, and the runner that begins, ends and gives up what runs in them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.generation import Pending
from tests.worker_runtime.ranks import RankPool
from worker_runtime import runner as runner_module
from worker_runtime.connections import Connections
from worker_runtime.core.questions import Kind, Question, Reduction, Release, Signature
from worker_runtime.operation import Operation
from worker_runtime.process_sets import ProcessSets
from worker_runtime.runner import Runner
from worker_runtime.torch_groups import ALL_RANKS, CONNECT_LIMIT, TorchGroup, TorchGroups, Work


class Recorded:
    """A torch group that remembers that it was ended, and whose barriers were waited for."""

    def __init__(self) -> None:
        self.is_ended = False
        self.limits: list[timedelta] = []

    def barrier(self) -> "Recorded":
        """Its work is the group itself."""
        return self

    def wait(self, timeout: timedelta) -> bool:
        """For a barrier."""
        self.limits.append(timeout)
        return True

    def shutdown(self) -> None:
        """End it."""
        self.is_ended = True


class Maker:
    """Makes recorded groups, or cannot."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.asked: list[tuple[str, int, int, str, timedelta]] = []
        self.error = error

    def make(self, prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Connections]:
        """As a backend does."""
        self.asked.append((prefix, rank, size, device, limit))
        if self.error is not None:
            raise self.error
        return cast("TorchGroup", Recorded()), Connections(frozenset())


def test_a_group_is_made_once_with_the_ranks_place_in_the_set() -> None:
    maker = Maker()
    groups = TorchGroups(5, maker.make)
    first = groups.find(3, (1, 5, 6))
    assert groups.find(3, (1, 5, 6)) is first
    assert groups.find(ALL_RANKS, tuple(range(8)), "cuda", timedelta(seconds=1)) is not first
    assert maker.asked == [
        ("set/3/cpu", 1, 3, "cpu", CONNECT_LIMIT),
        ("set/-1/cuda", 5, 8, "cuda", timedelta(seconds=1)),
    ]


def test_nobody_leaves_a_set_before_all_are_connected() -> None:
    groups = TorchGroups(0, Maker().make)
    made = cast("Recorded", groups.find(1, (0, 1, 2), limit=timedelta(seconds=3)))
    groups.find(1, (0, 1, 2))
    assert made.limits == [timedelta(seconds=3)]
    of_nccl, of_all = (cast("Recorded", groups.find(*which)) for which in ((1, (0, 1), "cuda"), (ALL_RANKS, (0, 1))))
    assert of_nccl.limits == of_all.limits == []  # a barrier of NCCL's needs to be told a GPU


def test_a_set_that_is_gone_takes_its_groups_along_and_no_others() -> None:
    groups = TorchGroups(0, Maker().make)
    kept, ended = (cast("Recorded", groups.find(version, (0, 1))) for version in (1, 2))
    groups.end(2)
    groups.end(7)  # which had none
    assert (kept.is_ended, ended.is_ended) == (False, True)
    groups.close()
    assert kept.is_ended


def test_closed_groups_make_no_more() -> None:
    groups = TorchGroups(0, Maker().make)
    groups.close()
    with pytest.raises(RuntimeError, match="the group is closed"):
        groups.find(ALL_RANKS, (0, 1))


def test_a_group_that_could_not_be_made_is_tried_again() -> None:
    maker = Maker(RuntimeError("no connection"))
    groups = TorchGroups(0, maker.make)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no connection"):
            groups.find(ALL_RANKS, (0, 1))
    assert len(maker.asked) == 2


def test_abandoned_groups_are_never_ended() -> None:
    groups = TorchGroups(0, Maker().make)
    group = cast("Recorded", groups.find(ALL_RANKS, (0, 1)))
    groups.abandon()
    groups.close()
    assert not group.is_ended


def test_overlapping_sets_communicate_in_crossed_orders_and_leave_no_connection(ranks: RankPool) -> None:
    def body() -> object:
        from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

        pairs = [hvd.add_process_set(pair) for pair in ((0, 1), (1, 2), (0, 2))]
        mine = [pair for pair in pairs if hvd.rank() in (pair.ranks or ())]
        if hvd.rank() == 1:
            mine.reverse()
        large = torch.full((100_000,), float(hvd.rank()))
        handles = [hvd.allreduce_async(large, op=hvd.Sum, name="x", process_set=pair) for pair in mine]
        sums = {tuple(pair.ranks or ()): hvd.synchronize(h)[0].item() for pair, h in zip(mine, handles, strict=True)}
        groups = RUNTIME.executor._attempt.runner._groups
        assert groups is not None
        counts = sorted(len(connections._names) for _, connections in groups._groups.values())
        for pair in pairs:
            hvd.remove_process_set(pair)
        return sums, counts, len(groups._groups)

    expected = {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 2.0}
    for rank, (sums, counts, left) in enumerate(ranks.run(body, size=3)):
        assert sums == {pair: total for pair, total in expected.items() if rank in pair}
        assert counts == [1, 1, 2]
        assert left == 1


class _Groups:
    """Torch's groups: they remember which one was asked for, and how all ended."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.found: list[tuple[object, ...]] = []
        self.ended: list[int | str] = []
        self._error = error
        self.end = self.ended.append
        self.close = lambda: self.ended.append("closed")
        self.abandon = lambda: self.ended.append("abandoned")

    def find(self, *which: object) -> "_Groups":
        self.found.append(which)
        if self._error is not None:
            raise self._error
        return self


class _Recorded(Operation[None]):
    """Begins the works it is given, or raises."""

    title = "barrier"

    def __init__(self, question: Question, works: Sequence[Work] | BaseException = ()) -> None:
        self.question = question
        self._works = works

    def start(self, *_: object) -> Sequence[Work]:
        if isinstance(self._works, BaseException):
            raise self._works
        return self._works

    def finish(self, *_: object) -> None:
        pass


def make_terms(kind: Kind, *, extents: tuple[int, ...] = (), value: int = 0, index: int = 0) -> Release:
    signature = Signature(kind, ("float32",), ((2,),), Reduction.SUM)
    question = Question(index, f"{kind.name.lower()}.x", signature)
    return Release(index, question, (0, 1), extents=(extents, extents), value=value)


BARRIER = make_terms(Kind.BARRIER)._replace(question=make_terms(Kind.BARRIER).question._replace(process_set=1))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not ended is not waited for."""
    monkeypatch.setattr(runner_module, "INTERRUPT_LIMIT_SECONDS", 0.0)


def test_an_operation_runs_in_the_group_of_its_sets_version() -> None:
    groups = _Groups()
    runner = Runner(0, groups, ProcessSets(0, 2))
    adding = make_terms(Kind.ADD_SET, extents=(0, 1), value=1, index=5)
    runner.start(_Recorded(adding.question), adding)
    works = (Pending(),)
    assert runner.start(_Recorded(BARRIER.question, works), BARRIER) is works
    assert groups.found == [(5, (0, 1), "cpu")]


def test_a_set_that_is_removed_ends_its_group() -> None:
    sets, groups = ProcessSets(0, 2), _Groups()
    sets.add(3, (0, 1), 8)
    removing = make_terms(Kind.REMOVE_SET, extents=(3,))
    Runner(0, groups, sets).start(_Recorded(removing.question), removing)
    assert (sets.numbers, groups.ended) == ((0,), [8])


def test_what_cannot_be_begun_is_an_error_without_frames() -> None:
    runner = Runner(0, _Groups(RuntimeError("no connection")), ProcessSets(0, 2))
    terms = make_terms(Kind.BARRIER)
    error = runner.start(_Recorded(terms.question), terms)
    assert isinstance(error, RuntimeError)
    assert error.__traceback__ is None
    assert runner.take_part(make_terms(Kind.ALLREDUCE)) is error


def test_in_a_world_of_one_nothing_communicates() -> None:
    runner = Runner(0, None, ProcessSets(0, 1))
    terms = make_terms(Kind.BARRIER)
    assert runner.start(_Recorded(terms.question, (Pending(),)), terms) == ()
    runner.interrupt()
    runner.abandon()
    assert runner.close([])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("is_done", "end"), [(True, "closed"), (False, "abandoned")])
@pytest.mark.parametrize("is_kept", [True, False])
def test_groups_are_closed_when_all_has_ended_and_else_given_up(*, is_done: bool, end: str, is_kept: bool) -> None:
    """Also what a failed operation leaves behind, for which nobody waits."""
    groups, works = _Groups(), (Pending(is_done=True), Pending(is_done=is_done))
    runner = Runner(0, groups, ProcessSets(0, 2))
    if is_kept:
        runner.keep(works)
    assert runner.close([] if is_kept else [works]) is is_done
    assert runner.close([])  # a second time there is nothing left
    assert groups.ended == [end]


def test_a_joined_rank_connects_to_nobody_for_what_travels_as_payload() -> None:
    """The others do not come: their data have travelled inside the questions."""
    groups = _Groups()
    signature = Signature(Kind.ALLREDUCE, ("float32",), ((2,),), Reduction.SUM, payload_dtype="float32")
    terms = Release(0, Question(0, "allreduce.x", signature), (0, 1), joined=(0,))
    assert Runner(0, groups, ProcessSets(0, 2)).take_part(terms) is None
    assert groups.found == []


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_groups_in_which_something_unknown_was_begun_are_given_up(error: BaseException) -> None:
    groups, terms = _Groups(), make_terms(Kind.BARRIER)
    runner = Runner(0, groups, ProcessSets(0, 2))
    operation = _Recorded(terms.question, error)
    if isinstance(error, RuntimeError):
        assert runner.start(operation, terms) is error
    else:
        with pytest.raises(KeyboardInterrupt):
            runner.start(operation, terms)
    assert not runner.close([])
    assert groups.ended == ["abandoned"]
