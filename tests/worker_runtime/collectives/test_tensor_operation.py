"""Operations run in their lane where they have one."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import torch

from worker_runtime.collectives.tensor_operation import TensorOperation
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.groups.torch_groups import TorchGroup, Work

USED = torch.zeros(1)


class FakeLane(AbstractContextManager):
    """Notes what happens to it."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        self._notes.append("enter")

    def __exit__(self, *_: object) -> None:
        self._notes.append("exit")

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """As `Lane.hand_over`."""
        assert list(tensors) == [USED]
        self._notes.append("hand over")


class Noting(TensorOperation[str]):
    """Notes when it is started and finished."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def _communicate(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        del group, terms
        self.notes.append("communicate")
        return ()

    def _conclude(self, terms: Release, payload: memoryview) -> str:
        del terms, payload
        self.notes.append("conclude")
        return "result"

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [USED]


def run(operation: Noting) -> list[str]:
    assert operation.start(None, None) == ()
    assert operation.finish(None, memoryview(b"")) == "result"
    return operation.notes


def test_on_the_cpu_there_is_no_lane() -> None:
    operation = Noting()
    operation._choose_lane("cpu", USED)
    assert run(operation) == ["communicate", "conclude"]


def test_on_cuda_it_starts_in_its_lane_and_is_handed_over_before_the_end() -> None:
    operation = Noting()
    operation._lane = FakeLane(operation.notes)
    assert run(operation) == ["enter", "communicate", "exit", "hand over", "conclude"]
