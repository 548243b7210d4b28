"""Stepping with averaged gradients: when they are averaged, when not, and what a gradient scaler sees."""

import os
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


def test_clearing_gradients_in_flight_discards_them_on_all_ranks(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
        for _ in range(5):
            used = parameters if hvd.rank() else parameters[1:]
            sum((parameter * 100).sum() for parameter in used).backward()
            optimizer.zero_grad()
            assert all(parameter.grad is None for parameter in parameters)
            sum((parameter * (hvd.rank() + 1)).sum() for parameter in parameters).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return [parameter.item() for parameter in parameters], parameters[0].grad.item()

    assert ranks.run(body) == [([-7.5, -7.5], 0.0)] * 2


@pytest.mark.parametrize("clears", ["by the optimizer", "by the model"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_an_adversarial_pair_is_trained_as_by_one_process(ranks: RankPool, clears: str, rounds: int) -> None:
    def train_pair(rank: int, size: int) -> list[torch.Tensor]:
        torch.manual_seed(5)
        generator, judge = torch.nn.Linear(2, 3).double(), torch.nn.Linear(3, 1).double()
        of_generator = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)
        of_judge = torch.optim.Adam(judge.parameters(), lr=0.01)
        if size > 1:
            of_generator = hvd.DistributedOptimizer(of_generator, generator.named_parameters())
            of_judge = hvd.DistributedOptimizer(of_judge, judge.named_parameters())
        for step in range(4):
            noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[rank::size]
            for _ in range(rounds):
                (of_judge if clears == "by the optimizer" else judge).zero_grad()
                (judge(torch.ones_like(generator(noise))) - judge(generator(noise).detach())).square().mean().backward()
                of_judge.step()
            (of_generator if clears == "by the optimizer" else generator).zero_grad()
            judge(generator(noise)).square().mean().backward()  # the judge gets gradients, too
            of_generator.step()
        return [parameter.detach() for parameter in [*generator.parameters(), *judge.parameters()]]

    reference = train_pair(0, 1)
    for replica in ranks.run(lambda: train_pair(hvd.rank(), hvd.size())):
        torch.testing.assert_close(replica, reference, rtol=1e-8, atol=1e-10)


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


@pytest.mark.parametrize("way", ["skipped by the scaler", "dropped after synchronize"])
def test_gradients_that_the_model_has_cleared_do_not_count_as_averaged(ranks: RankPool, way: str) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer()
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        scaler.scale(parameter.sum() * (torch.inf if way.startswith("skipped") else 1.0)).backward()
        if way.startswith("skipped"):
            scaler.step(optimizer)
        else:
            optimizer.synchronize()
        parameter.grad = None
        scaler.scale((parameter * (hvd.rank() + 1)).sum()).backward()
        if way.startswith("skipped"):
            optimizer.step()
        else:
            scaler.step(optimizer)
        return parameter.item()

    assert ranks.run(body) == [-1.5] * 2


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
        with pytest.raises(RuntimeError, match=r"^a newer DistributedOptimizer has allreduce.noname.0.0, and"):
            old.step()
        new.step()
        seen = parameter.item()
        again = hvd.DistributedOptimizer(old)
        again.zero_grad()
        parameter.sum().backward()
        again.step()
        return seen, parameter.item()

    assert ranks.run(body) == [(-3.75, -4.75)] * 2


def test_replicas_that_differ_are_told_with_the_first_step_and_parameter(ranks: RankPool) -> None:
    def body(parts_at: int) -> object:
        os.environ["HVD_CHECK_REPLICAS"] = "2"
        parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(()))]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
        del os.environ["HVD_CHECK_REPLICAS"]
        for step in range(6):
            if step == parts_at and hvd.rank():
                parameters[1].data.add_(1.0)
            optimizer.zero_grad()
            sum(parameter.sum() for parameter in parameters).backward()
            try:
                optimizer.step()
            except RuntimeError as error:
                return str(error)
        return None

    told = "the replicas have parted: allreduce.noname.0.1 is not the same on all ranks "
    for parts_at, when in ((0, "before the first step; "), (3, "between step 2 and step 4; ")):
        for text in ranks.run(body, parts_at):
            assert text.startswith(told + when)
    assert ranks.run(body, 7) == [None] * 2


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

    assert ranks.run(body) == [(1, 0, 3)] * 2


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
