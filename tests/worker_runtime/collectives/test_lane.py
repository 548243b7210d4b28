"""CUDA streams: an operation waits for its inputs, and whoever takes its result for it."""

import itertools

import pytest
import torch

from tests.worker_runtime.collectives.makers import MAKERS
from tests.worker_runtime.collectives.ways import run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.tensor_operation import Lane

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@needs_cuda
def test_work_in_a_lane_begins_when_the_inputs_are_ready_and_ends_before_they_are_used() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    caller = torch.cuda.Stream(device)
    with torch.cuda.stream(caller):
        torch.cuda._sleep(50_000_000)  # the inputs are far from ready
        x = torch.full((1 << 20,), 2.0, device=device)
        lane = Lane(device)
        x_later = x * 100  # what the caller does then is not waited for
    with lane:
        assert torch.cuda.current_stream(device) != caller
        y = x + 1
    assert torch.cuda.current_stream(device) != caller
    lane.hand_over([x, y])
    z = y * 2
    assert z.unique().tolist() == [6.0]
    assert x_later.unique().tolist() == [200.0]


def test_on_the_cpu_cuda_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("CUDA was touched")

    for name in ("Stream", "stream", "current_stream", "is_available", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)

    def body(executor: ThreadEngine) -> None:
        for make in itertools.chain(*MAKERS.values()):
            executor.run(make(torch.ones(2), executor.all))
        assert not torch.cuda.is_initialized()

    run(body)
