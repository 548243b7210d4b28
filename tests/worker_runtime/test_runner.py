"""Running releases: process sets change in order, and what runs is ended or given up."""

from collections.abc import Sequence

import pytest

from tests.worker_runtime.generation import Pending
from worker_runtime import runner as runner_module
from worker_runtime.core.questions import Kind, Question, Reduction, Release, Signature
from worker_runtime.operation import Operation
from worker_runtime.process_sets import ProcessSets
from worker_runtime.runner import Runner
from worker_runtime.torch_groups import Work


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
