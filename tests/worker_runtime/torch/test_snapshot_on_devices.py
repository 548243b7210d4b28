"""`Snapshot` of tensors on a device, whose host is ahead of it, and which are overwritten right after a save."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch import Snapshot

pytestmark = pytest.mark.devices

LATE = 100_000_000  # cycles of a GPU


@contextmanager
def in_a_slot(local_rank: int = 0) -> Iterator[pytest.MonkeyPatch]:
    """A context in which this process is a worker with memory for snapshots, in the first round."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}.items():
            patch.setenv(name, value)
        patch.setenv("LOCAL_RANK", str(local_rank))
        descriptor = os.memfd_create("hvdrun-snapshot")
        patch.setenv("HVD_SNAPSHOT_FD", str(descriptor))
        yield patch
        os.close(descriptor)


def make(**options: Any) -> Any:
    """A Snapshot of a model, an optimizer and a tensor."""
    torch.manual_seed(1)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return Snapshot(model, optimizer, tensor=torch.zeros(5), **options)


def step(kept: Any) -> None:
    """A step, to which the device comes late."""
    kept.optimizer.zero_grad()
    kept.model(torch.ones(2, 256)).square().sum().backward()
    if torch.cuda.is_initialized():
        torch.cuda._sleep(LATE)
    kept.optimizer.step()
    kept.tensor += 1


def list_tensors(kept: Any) -> list[torch.Tensor]:
    """All that is kept; the step of Adam lies on the CPU."""
    states = kept.optimizer.state_dict()["state"].values()
    return [*kept.model.parameters(), *(each for state in states for each in state.values()), kept.tensor]


def draw() -> list[float]:
    """Random numbers of the device."""
    return torch.nn.functional.dropout(torch.ones(64)).tolist()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_snapshot_has_the_values_of_its_save_on_their_device(ranks: RankPool, in_background: bool) -> None:
    def body() -> object:
        with in_a_slot() as patch:
            first = make(in_background=in_background)
            assert not first.restore()
            for _ in range(3):
                step(first)
                first.save()
            expected = [tensor.clone() for tensor in list_tensors(first)]
            drawn = draw()
            with torch.no_grad():
                for tensor in list_tensors(first):
                    tensor.fill_(-1)
            first._await_writer()
            del first

            patch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
            second = make()
            assert second.restore()
            restored = list_tensors(second)
            assert draw() == drawn
            assert [tensor.device for tensor in restored] == [tensor.device for tensor in expected]
            return [torch.equal(one, other) for one, other in zip(restored, expected, strict=True)]

    ((*equal,),) = ranks.run(body, size=1)
    assert all(equal)
    assert len(equal) == 9


def test_a_rank_that_copies_no_state_is_at_most_one_save_ahead_of_its_device(ranks: RankPool) -> None:
    def body() -> object:
        with in_a_slot(local_rank=1):
            kept = make()
            assert not kept.restore()
            events = []
            for _ in range(4):
                step(kept)
                if kept.tensor.is_cuda:
                    events.append(torch.cuda.current_stream().record_event())
                kept.save()
            return [event.query() for event in events[:-1]]

    (passed,) = ranks.run(body, size=1)
    assert all(passed)
