"""Stepping with averaged gradients: when they are averaged, when not, and what a gradient scaler sees."""

from contextlib import nullcontext

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def make_optimizer(**settings: object) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    return parameter, hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **settings)


def test_a_step_after_synchronize_warns(ranks: RankPool) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer()
        parameter.sum().backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match=r"^optimizer.step\(\) called without optimizer.skip_synchronize\(\)"):
            optimizer.step()
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()

    ranks.run(body)


def test_a_closures_loss_is_averaged_and_anything_else_that_it_returns_is_left_alone(ranks: RankPool) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer()
        with torch.no_grad():
            parameter.fill_(1.0)

        def compute(*, gives_loss: bool) -> object:
            optimizer.zero_grad()
            loss = (parameter * (hvd.rank() + 1)).sum()
            loss.backward()
            return loss if gives_loss else "done"

        loss = optimizer.step(lambda: compute(gives_loss=True)).item()
        return loss, optimizer.step(lambda: compute(gives_loss=False)), parameter.item()

    assert ranks.run(body) == [(1.5, "done", -2.0)] * 2


def test_loading_a_state_throws_the_present_step_away(ranks: RankPool) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer()
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
        saved = optimizer.state_dict()
        (parameter * 100).sum().backward()
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        return parameter.item()

    assert ranks.run(body) == [-6.0] * 2


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_the_newest_optimizer_has_a_parameter_and_the_old_one_steps_no_more(ranks: RankPool, op: int) -> None:
    def body() -> object:
        parameter, old = make_optimizer(op=op)
        for _ in range(3):
            old.zero_grad()
            parameter.sum().backward()
            old.step()
        new = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))
        parameter.grad = None
        (parameter * (hvd.rank() + 1)).sum().backward()
        with pytest.raises(RuntimeError, match=r"^a newer DistributedOptimizer averages .* of allreduce.noname.0.0;"):
            old.step()
        new.step()
        seen = parameter.item()
        again = hvd.DistributedOptimizer(old)
        again.zero_grad()
        (parameter * (hvd.rank() + 1)).sum().backward()
        again.step()
        return seen, parameter.item()

    assert ranks.run(body) == [(-3.75, -5.25)] * 2


def test_replicas_that_differ_are_told_before_the_first_step(ranks: RankPool) -> None:
    def body() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HVD_CHECK_REPLICAS", "2")
            parameter, optimizer = make_optimizer()
        parameter.data.add_(hvd.rank())
        parameter.sum().backward()
        message = "allreduce.noname.0.0 is not the same on all ranks before the first step; "
        with pytest.raises(RuntimeError, match=message):
            optimizer.step()

    ranks.run(body)


def test_programs_see_what_horovods_optimizer_shows(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), [("a", parameters[0]), ("b", parameters[1])], groups=2
        )
        for _ in range(2):
            optimizer.step()
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in parameters).backward()
        in_flight = len(optimizer._handles)
        optimizer.step()
        assert optimizer._parameter_names == {parameters[0]: "a", parameters[1]: "b"}
        assert optimizer._requires_update == set(parameters)
        assert optimizer.op == hvd.Average
        assert optimizer.process_set is hvd.global_process_set
        assert optimizer._compression is hvd.Compression.none
        optimizer.set_backward_passes_per_step(3)
        return in_flight, len(optimizer._handles), optimizer.backward_passes_per_step

    assert ranks.run(body) == [(2, 0, 3)] * 2


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("way", ["plain", "unscale", "synchronize", "off"])
def test_a_gradient_scaler_finds_the_same_infinities_on_all_ranks(ranks: RankPool, way: str, *, is_fused: bool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0, fused=is_fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100, enabled=way != "off")
        seen = []
        for step in range(6):
            if step % 2:
                optimizer.zero_grad()
            else:
                parameter.grad = None
            is_infinite = way != "off" and step in {1, 4} and hvd.rank() == 1
            scaler.scale((parameter * (torch.inf if is_infinite else hvd.rank() + 1.0)).sum()).backward()
            if way == "synchronize":
                optimizer.synchronize()
            if way in {"unscale", "synchronize"}:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_([parameter], 100.0)
            with optimizer.skip_synchronize() if way == "synchronize" else nullcontext():
                scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), parameter.item()))
        return seen

    steps = [(4.0, -1.5), (2.0, -1.5), (2.0, -3.0), (2.0, -4.5), (1.0, -4.5), (1.0, -6.0)]
    if way == "off":
        steps = [(1.0, -1.5 * step) for step in range(1, 7)]
    assert ranks.run(body) == [steps] * 2
