"""A test that runs on two ranks; write yours like it."""

import pytest
import torch

import worker_runtime.torch as hvd


@pytest.mark.hvdrun(np=2)
def test_gradients_are_averaged() -> None:
    hvd.init()
    model = torch.nn.Linear(2, 1, bias=False)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.synchronize()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[0.5, 0.5]]
