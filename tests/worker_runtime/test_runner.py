"""Running releases: process sets change in order, and what runs is ended or given up."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest

from worker_runtime import runner as runner_module
from worker_runtime.connections import Connections
from worker_runtime.core.questions import Kind, Question, Reduction, Release, Signature
from worker_runtime.operation import Operation
from worker_runtime.process_sets import ProcessSets
from worker_runtime.runner import Runner
from worker_runtime.torch_groups import TorchGroup, TorchGroups, Work


class Pending:
    """A work that ends when it is told to."""

    def __init__(self, *, is_done: bool = False) -> None:
        self.is_done = is_done

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """As torch's."""
        if not self.is_done:
            raise RuntimeError(f"not within {timeout}")
        return True

    def is_completed(self) -> bool:
        """As torch's."""
        return self.is_done


class Groups(TorchGroups):
    """Remembers which group was asked for, and how all ended."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        super().__init__(0, self._refuse)
        self.found: list[tuple[int, tuple[int, ...], str]] = []
        self.ended: list[int | str] = []
        self._error = error

    def find(
        self, version: int, ranks: tuple[int, ...], device: str = "cpu", limit: timedelta = timedelta()
    ) -> TorchGroup:
        """Hand out no group, or raise."""
        del limit
        self.found.append((version, ranks, device))
        if self._error is not None:
            raise self._error
        return cast("TorchGroup", self)

    def end(self, version: int) -> None:
        """Remember."""
        self.ended.append(version)

    def interrupt(self) -> None:
        """Remember."""
        self.ended.append("interrupted")

    def close(self) -> None:
        """Remember."""
        self.ended.append("closed")

    def abandon(self) -> None:
        """Remember."""
        self.ended.append("abandoned")

    def _refuse(self, *_: object) -> tuple[TorchGroup, Connections]:
        raise AssertionError("no real group is wanted")


class Recorded(Operation[None]):
    """Starts the works it is given."""

    title = "barrier"

    def __init__(self, question: Question, works: Sequence[Work] = ()) -> None:
        self.question = question
        self._works = works

    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """As it was told."""
        del group, terms
        return self._works

    def finish(self, terms: Release, payload: memoryview) -> None:
        """Nothing is to be made."""


def release(kind: Kind, *, extents: tuple[int, ...] = (), value: int = 0, index: int = 0, number: int = 0) -> Release:
    signature = Signature(kind, ("float32",), ((2,),), Reduction.SUM)
    question = Question(number, f"{kind.name.lower()}.x", signature)
    return Release(index, question, (0, 1), extents=(extents, extents), value=value)


def test_an_operation_runs_in_the_group_of_its_sets_version() -> None:
    sets, groups = ProcessSets(0, 2), Groups()
    runner = Runner(0, groups, sets)
    runner.start(Recorded(release(Kind.ADD_SET).question), release(Kind.ADD_SET, extents=(0, 1), value=1, index=5))
    terms = release(Kind.BARRIER, number=1)
    works = (Pending(),)
    assert runner.start(Recorded(terms.question, works), terms) is works
    assert groups.found == [(5, (0, 1), "cpu")]


def test_a_set_that_is_removed_ends_its_group() -> None:
    sets, groups = ProcessSets(0, 2), Groups()
    sets.add(3, (0, 1), 8)
    Runner(0, groups, sets).start(Recorded(release(Kind.REMOVE_SET).question), release(Kind.REMOVE_SET, extents=(3,)))
    assert (sets.numbers, groups.ended) == ((0,), [8])


def test_what_cannot_be_begun_is_an_error_without_frames() -> None:
    runner = Runner(0, Groups(RuntimeError("no connection")), ProcessSets(0, 2))
    terms = release(Kind.BARRIER)
    error = runner.start(Recorded(terms.question), terms)
    assert isinstance(error, RuntimeError)
    assert error.__traceback__ is None
    assert runner.take_part(release(Kind.ALLREDUCE)) is error


def test_in_a_world_of_one_nothing_communicates() -> None:
    runner = Runner(0, None, ProcessSets(0, 1))
    terms = release(Kind.BARRIER)
    assert runner.start(Recorded(terms.question, (Pending(),)), terms) == ()
    runner.interrupt()
    runner.abandon()
    assert runner.close([])


def test_what_has_ended_is_closed_and_what_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_INTERRUPT_LIMIT_SECONDS", 0.0)
    for is_done, end in [(True, "closed"), (False, "abandoned")]:
        groups = Groups()
        runner = Runner(0, groups, ProcessSets(0, 2))
        assert runner.close([(Pending(is_done=is_done),)]) is is_done
        assert runner.close([])  # a second time there is nothing left
        assert groups.ended == [end]


def test_a_joined_rank_connects_to_nobody_for_what_travels_as_payload() -> None:
    """The others do not come: their data have travelled inside the questions."""
    groups = Groups()
    signature = Signature(Kind.ALLREDUCE, ("float32",), ((2,),), Reduction.SUM, payload_dtype="float32")
    terms = Release(0, Question(0, "allreduce.x", signature), (0, 1), joined=(0,))
    assert Runner(0, groups, ProcessSets(0, 2)).take_part(terms) is None
    assert groups.found == []


def test_what_a_failed_operation_leaves_behind_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_INTERRUPT_LIMIT_SECONDS", 0.0)
    groups = Groups()
    runner = Runner(0, groups, ProcessSets(0, 2))
    runner.keep((Pending(is_done=True), Pending()))
    assert not runner.close([])
    assert groups.ended == ["abandoned"]


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_groups_in_which_something_unknown_was_begun_are_given_up(error: BaseException) -> None:
    class Interrupted(Recorded):
        def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
            super().start(group, terms)
            raise error

    groups = Groups()
    runner = Runner(0, groups, ProcessSets(0, 2))
    terms = release(Kind.BARRIER)
    if isinstance(error, RuntimeError):
        assert runner.start(Interrupted(terms.question), terms) is error
    else:
        with pytest.raises(KeyboardInterrupt):
            runner.start(Interrupted(terms.question), terms)
    assert not runner.close([])
    assert groups.ended == ["abandoned"]
