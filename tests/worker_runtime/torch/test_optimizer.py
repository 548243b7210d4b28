"""The distributed optimizer trains as one process with the whole batch would, and is the user's optimizer otherwise.

Long because each fault of Horovod's optimizer that is mended has its test here.
"""

import copy
import gc
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"),
}
STEPS = 6


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def make_batch(step: int, rank: int, size: int) -> torch.Tensor:
    """The part of a rank; all parts together are the batch of one process."""
    whole = torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return whole[rank::size]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of one in the test's own process."""
    hvd.init()
    yield
    hvd.shutdown()


def train(make: Callable[..., torch.optim.Optimizer], rank: int, size: int, *, closure: bool) -> list[torch.Tensor]:
    model = make_model()
    optimizer = make(model.parameters())
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(STEPS):
        batch = make_batch(step, rank, size)

        def compute(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        if closure:
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "way", ["SGD", "momentum", "AdamW", "SGD in a closure", "AdamW in a closure", "LBFGS in a closure"]
)
def test_several_workers_train_as_one_with_the_whole_batch(ranks: RankPool, way: str, size: int) -> None:
    make, closure = OPTIMIZERS[way.partition(" ")[0]], way.endswith("closure")

    def body() -> object:
        return train(make, hvd.rank(), hvd.size(), closure=closure)

    replicas = ranks.run(body, size=size)
    for replica in replicas:
        for parameter, first, reference in zip(replica, replicas[0], train(make, 0, 1, closure=closure), strict=True):
            assert torch.equal(parameter, first)
            torch.testing.assert_close(parameter, reference, rtol=1e-8, atol=1e-10)


def test_the_loss_of_a_closure_is_that_of_the_whole_batch(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))

        def compute() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (parameter * (hvd.rank() + 1)).sum()
            loss.backward()
            return loss

        return optimizer.step(compute).item(), parameter.item()

    assert ranks.run(body) == [(1.5, -0.5)] * 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1.5),
        ({"op": hvd.Sum}, 3.0),
        ({"gradient_predivide_factor": 2.0}, 1.5),
        ({"backward_passes_per_step": 2}, 3.0),
    ],
)
def test_the_settings_decide_the_gradient(ranks: RankPool, settings: dict[str, float], expected: float) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **settings)
        for _ in range(int(settings.get("backward_passes_per_step", 1))):
            (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        return -parameter.item()

    assert ranks.run(body) == [expected] * 2


def test_gradients_may_be_clipped_between_synchronize_and_step(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.synchronize()
        averaged = parameter.grad.item()
        torch.nn.utils.clip_grad_norm_([parameter], 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        return averaged, round(-parameter.item(), 4)

    assert ranks.run(body) == [(1.5, 0.5)] * 2


def test_a_step_after_synchronize_warns(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        parameter.sum().backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match=r"^optimizer.step\(\) called without optimizer.skip_synchronize\(\)"):
            optimizer.step()
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()

    ranks.run(body)


def test_clearing_gradients_in_flight_discards_them_on_all_ranks(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        (parameter * 100).sum().backward()
        optimizer.zero_grad()
        assert parameter.grad is None
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return parameter.item(), parameter.grad.item()

    assert ranks.run(body) == [(-1.5, 0.0)] * 2


def test_parameters_added_or_unfrozen_after_wrapping_are_averaged_too(ranks: RankPool) -> None:
    def body() -> object:
        early, frozen, added = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
        frozen.requires_grad_(requires_grad=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([early, frozen], lr=1.0))
        early.sum().backward()
        optimizer.step()
        frozen.requires_grad_()
        optimizer.add_param_group({"params": [added], "lr": 2.0})
        for _ in range(2):
            optimizer.zero_grad()
            ((early + frozen + added) * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
        return [parameter.item() for parameter in (early, frozen, added)]

    assert ranks.run(body) == [[-4.0, -3.0, -6.0]] * 2


def test_a_parameter_that_is_frozen_later_is_left_alone(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0, weight_decay=0.5))
        parameters[1].requires_grad_(requires_grad=False)
        parameters[0].sum().backward()
        optimizer.step()
        return parameters[1].item(), parameters[1].grad

    assert ranks.run(body) == [(1.0, None)] * 2


@pytest.mark.parametrize("again", ["the original", "the wrapped one"])
def test_wrapping_anew_replaces_the_earlier_wrapping(ranks: RankPool, again: str) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([parameter], lr=1.0)
        first = hvd.DistributedOptimizer(plain)
        second = hvd.DistributedOptimizer(plain if again == "the original" else first)
        for _ in range(2):
            second.zero_grad()
            (parameter * (hvd.rank() + 1)).sum().backward()
            second.step()
        return parameter.item()

    assert ranks.run(body) == [-3.0] * 2


def make_plain() -> tuple[torch.nn.Parameter, torch.optim.SGD]:
    parameter = torch.nn.Parameter(torch.zeros(2))
    plain = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    parameter.sum().backward()
    plain.step()
    return parameter, plain


def test_the_result_is_an_instance_of_the_optimizers_class_under_its_name() -> None:
    _, plain = make_plain()
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == hvd.DistributedOptimizer.__module__
    assert repr(optimizer).startswith("DistributedSGD (")


def test_existing_state_is_kept_and_shared() -> None:
    parameter, plain = make_plain()
    optimizer = hvd.DistributedOptimizer(plain)
    assert optimizer.state is plain.state
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [1.0, 1.0]
    assert optimizer.param_groups is plain.param_groups
    assert optimizer.defaults is plain.defaults
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"][0]["momentum_buffer"].tolist() == [1.0, 1.0]
    optimizer.step()
    optimizer.load_state_dict(saved)
    assert plain.state[parameter]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_attributes_written_on_the_wrapped_optimizer_reach_the_original() -> None:
    _, plain = make_plain()
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.rescale = 0.5
    assert plain.rescale == 0.5
    optimizer.param_groups = [{**group, "lr": 3.0} for group in plain.param_groups]
    assert plain.param_groups[0]["lr"] == 3.0


@pytest.mark.parametrize("built_on", ["the original", "the wrapped one"])
def test_a_scheduler_works_whichever_optimizer_it_was_built_on(built_on: str) -> None:
    parameter, plain = make_plain()
    schedule = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5) if built_on == "the original" else None
    optimizer = hvd.DistributedOptimizer(plain)
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.5, 0.25]


def test_hooks_of_the_optimizer_see_the_averaged_gradients(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        seen = []
        optimizer.register_step_pre_hook(lambda *_: seen.append(parameter.grad.item()))
        (parameter * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        return seen

    assert ranks.run(body) == [[1.5]] * 2


def test_a_copy_is_refused() -> None:
    _, plain = make_plain()
    with pytest.raises(TypeError, match="use its state_dict"):
        copy.deepcopy(hvd.DistributedOptimizer(plain))


def test_a_dropped_wrapping_leaves_the_original_as_it_was() -> None:
    parameter, plain = make_plain()
    hvd.DistributedOptimizer(plain)
    gc.collect()
    plain.zero_grad()
    parameter.sum().backward()
    plain.step()
    assert parameter.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "only with op=Average"),
        ({"op": 2}, "op=2 is not supported"),
        ({"named_parameters": [torch.zeros(1)]}, "tuples"),
        ({"named_parameters": [("a", torch.zeros(1)), ("a", torch.zeros(1))]}, "more than once: a"),
        ({"named_parameters": [("a", torch.zeros(1))]}, "lacks parameters of the optimizer: parameter 0 of group 0"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, object], message: str) -> None:
    _, plain = make_plain()
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(plain, **settings)


def test_what_is_not_served_is_refused_rather_than_ignored() -> None:
    _, plain = make_plain()
    with pytest.raises(NotImplementedError, match="'compression'"):
        hvd.DistributedOptimizer(plain, compression=object())
    with pytest.raises(TypeError, match="groups"):
        hvd.DistributedOptimizer(plain, groups=2)


def test_an_optimizer_is_wrapped_only_after_init() -> None:
    _, plain = make_plain()
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedOptimizer(plain)
