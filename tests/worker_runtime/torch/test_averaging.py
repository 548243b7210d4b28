"""Stepping with averaged gradients: when they are averaged, when not, and what a gradient scaler sees."""

from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
import torch

import worker_runtime.torch as hvd
from tests.system.tables import rest_nightly
from tests.worker_runtime.ranks import RankPool
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.membership import runtime

pytestmark = pytest.mark.devices


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


def make_closure(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, give: Callable[[torch.Tensor], object]
) -> Callable[[], object]:
    """A closure whose loss and gradients differ between the ranks."""

    def compute() -> object:
        optimizer.zero_grad()
        loss = (parameter * (hvd.rank() + 1)).sum()
        loss.backward()
        return give(loss)

    return compute


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (lambda loss: loss, torch.tensor(1.5)),
        (lambda loss: loss.long(), torch.tensor(1.5, dtype=torch.float64)),
        (lambda loss: loss.item(), 1.5),
        (int, 1.5),
        (lambda loss: loss.item() == 1, 0.5),
        (lambda loss: np.float32(loss.item()), 1.5),
        (lambda loss: np.asarray(loss.item()), 1.5),
        (lambda loss: Fraction(int(loss), 3), 0.5),
        (lambda loss: None, None),  # noqa: ARG005 - a closure may return nothing
    ],
    ids=("tensor", "integers", "float", "int", "bool", "NumPy's", "array", "Fraction", "none"),
)
def test_a_closures_loss_is_averaged_whatever_number_it_is(
    ranks: RankPool, give: Callable[[torch.Tensor], object], expected: object, op: int
) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer(op=op)
        with torch.no_grad():
            parameter.fill_(1.0)
        return optimizer.step(make_closure(parameter, optimizer, give))

    right = expected if expected is None or op == hvd.Average else expected * 2
    for loss in ranks.run(body):
        assert type(loss) is type(right)
        assert loss == pytest.approx(right)
        assert not isinstance(loss, torch.Tensor) or loss.dtype == right.dtype


@pytest.mark.parametrize("way", ["averaged by step()", "averaged in the closure"])
@pytest.mark.parametrize("give", [torch.Tensor.detach, torch.Tensor.item], ids=("tensor", "float"))
def test_ranks_decide_alike_by_losses_that_differ(
    ranks: RankPool, give: Callable[[torch.Tensor], object], way: str
) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([parameter], line_search_fn="strong_wolfe"))

        def compute() -> object:
            optimizer.zero_grad()
            loss = ((parameter - hvd.rank()) ** 4).sum() * 10 ** hvd.rank()
            loss.backward()
            if "closure" in way:
                optimizer.synchronize()
            return give(loss)

        for _ in range(2):
            with optimizer.skip_synchronize() if "closure" in way else nullcontext():
                optimizer.step(compute)
        return parameter.tolist()

    first, second = ranks.run(body)
    assert first == second != [1.0] * 3


@pytest.mark.parametrize("given", ["done", (1.0, 2.0), 1j, np.complex64(1), np.ones(2), {}], ids=repr)
def test_an_object_that_is_no_loss_is_refused_and_the_next_step_works(ranks: RankPool, given: object) -> None:
    def body() -> object:
        parameter, optimizer = make_optimizer()
        compute = make_closure(parameter, optimizer, lambda loss: given if hvd.rank() == 1 else loss.item())
        with pytest.raises((ValueError, hvd.HorovodInternalError), match=r"the closure returned \w+; return"):
            optimizer.step(compute)
        optimizer.step(make_closure(parameter, optimizer, torch.Tensor.item))
        return parameter.item()

    assert ranks.run(body) == [-1.5] * 2


def test_a_closure_without_a_loss_on_some_ranks_raises_on_all(ranks: RankPool) -> None:
    def body() -> None:
        parameter, optimizer = make_optimizer()
        with pytest.raises(hvd.HorovodInternalError, match="no loss"):
            optimizer.step(make_closure(parameter, optimizer, lambda loss: loss.item() if hvd.rank() else None))

    ranks.run(body)


def test_a_closure_that_synchronizes_is_warned_of_a_second_average(ranks: RankPool) -> None:
    def body() -> None:
        parameter, optimizer = make_optimizer()
        with pytest.warns(UserWarning, match="averaged a second time"):
            optimizer.step(make_closure(parameter, optimizer, lambda _: optimizer.synchronize()))

    ranks.run(body)


@pytest.mark.parametrize(("op", "expected"), [(hvd.Average, 1.5), (hvd.Sum, 3.0), (hvd.Adasum, 1.5)])
def test_a_closure_that_fails_leaves_each_rank_its_gradient_and_the_next_step_takes_it_once(
    ranks: RankPool, op: Reduction, expected: float
) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum, groups=3)

        def compute(factor: float) -> torch.Tensor:
            optimizer.zero_grad()
            loss = factor * torch.cat(parameters).sum()
            loss.backward()
            if factor == 1.0:
                raise KeyError(factor)
            return loss

        for _ in range(6):  # by then buckets are submitted during backward
            optimizer.step(lambda: compute(0.0))
        with pytest.raises((KeyError, hvd.HorovodInternalError)):
            optimizer.step(lambda: compute(hvd.rank() + 1.0))
        kept = [parameter.grad.item() for parameter in parameters if parameter.grad is not None]
        hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=op).step()
        return kept, [parameter.item() for parameter in parameters]

    assert ranks.run(body) == [([rank + 1.0] * 3, [-expected] * 3) for rank in range(2)]


def test_loading_a_state_discards_the_present_step(ranks: RankPool) -> None:
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


def test_replicas_that_differ_are_reported_before_the_first_step(ranks: RankPool) -> None:
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
        scaler = torch.amp.GradScaler(parameter.device.type, init_scale=4.0, growth_interval=100, enabled=way != "off")
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


STATEMENTS: dict[str, tuple[str, ...]] = {
    "step": ("backward", "step"),
    "synchronize and skip": ("backward", "synchronize", "clip", "skip step"),
    "scaler": ("backward", "scaled step"),
    "unscale": ("backward", "unscale", "clip", "scaled step"),
    "Horovod's order": ("backward", "synchronize", "unscale", "clip", "scaled skip step"),
    "accumulated": ("backward", "backward", "unscale", "scaled step"),
}


@pytest.mark.parametrize("op", rest_nightly([hvd.Sum, hvd.Average, hvd.Product]), ids=lambda op: op.name)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_recovery_between_two_statements_changes_no_gradient(ranks: RankPool, op: Reduction, name: str) -> None:
    """The next generation has the same members here, so that the right gradient is that of the other steps."""
    statements = STATEMENTS[name]

    def train(moment: int) -> list[object]:
        parameter = torch.nn.Parameter(torch.zeros(2))
        passes = statements.count("backward")
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), op=op, backward_passes_per_step=passes
        )
        scaler = torch.amp.GradScaler(parameter.device.type, init_scale=4.0, enabled="scale" in str(statements))
        does = {
            "backward": lambda: scaler.scale((parameter * (hvd.rank() + 2)).sum()).backward(),
            "synchronize": optimizer.synchronize,
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: torch.nn.utils.clip_grad_norm_([parameter], 100.0),
            "step": optimizer.step,
            "scaled step": lambda: (scaler.step(optimizer), scaler.update()),
        }
        seen = []
        for step in range(7):
            optimizer.zero_grad()
            for place, statement in enumerate(statements):
                if step in {2, 5} and place == moment:
                    runtime.RUNTIME.engine.generation += 1
                with optimizer.skip_synchronize() if "skip" in statement else nullcontext():
                    does[statement.replace("skip ", "")]()
            seen.append(parameter.grad.tolist())
        return seen

    for first, *others in zip(*ranks.run(lambda: [train(moment) for moment in range(len(statements))]), strict=True):
        assert others == [first]
        assert first == [first[0]] * 7
