"""A distributed optimizer is the user's optimizer in everything that is not about averaging."""

import copy
import ctypes
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.optimizer import _DistributedAdasumOptimizer, _DistributedOptimizer
from worker_runtime.torch.proxies import list_parameters, unwrap

pytestmark = pytest.mark.devices


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of one in the test's own process."""
    hvd.init()
    yield
    hvd.shutdown()


def make_plain() -> tuple[torch.nn.Parameter, torch.optim.SGD]:
    parameter = torch.nn.Parameter(torch.zeros(2))
    plain = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    parameter.sum().backward()
    plain.step()
    return parameter, plain


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_the_result_is_an_instance_of_the_optimizers_class_under_its_name(op: int) -> None:
    _, plain = make_plain()
    optimizer = hvd.DistributedOptimizer(plain, op=op)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == hvd.DistributedOptimizer.__module__
    assert repr(optimizer).startswith("DistributedSGD (")
    assert unwrap(optimizer) is plain
    assert unwrap(plain) is plain


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_existing_state_is_kept_and_shared(op: int) -> None:
    parameter, plain = make_plain()
    optimizer = hvd.DistributedOptimizer(plain, op=op)
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
    del optimizer.rescale
    assert not hasattr(plain, "rescale")
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
    optimizer = hvd.DistributedOptimizer(plain)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="use its state_dict"):
            duplicate(optimizer)


def test_parameters_without_a_name_are_called_as_in_horovod() -> None:
    parameter, plain = make_plain()
    assert list_parameters(plain, {}) == [("allreduce.noname.0.0", parameter)]
    assert list_parameters(plain, {parameter: "w"}) == [("w", parameter)]


def use_and_drop(how: str) -> list["weakref.ref[object]"]:
    """Wrap an optimizer of a model of 2 MB, use both, and drop both."""
    model = torch.nn.Sequential(torch.nn.Linear(500, 1000), hvd.SyncBatchNorm(1000))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        model.named_parameters(),
        compression=hvd.Compression.fp16 if how == "compressed" else hvd.Compression.none,
        op=hvd.Adasum if how == "Adasum" else hvd.Average,
    )
    for _ in range(3):
        model(torch.ones(2, 500) * hvd.rank()).sum().backward()
        if how == "stepped":
            optimizer.step()
        optimizer.zero_grad()
    kept = [weakref.ref(model), weakref.ref(optimizer), *(weakref.ref(each) for each in model.parameters())]
    if how == "state":
        state = hvd.elastic.TorchState(model, optimizer, epoch=0)
        state.commit()
        kept.append(weakref.ref(state))
    return kept


@pytest.mark.parametrize("how", ["stepped", "discarded", "Adasum", "compressed", "state"])
def test_models_and_optimizers_that_are_dropped_are_gone(ranks: RankPool, how: str) -> None:
    """Torch's hooks are invisible to the garbage collector, and memory grew by a model with each wrapping."""

    def measure() -> int:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is free does not count
        with open("/proc/self/statm") as file:  # noqa: PTH123 - a Path would allocate, and this measures memory
            return int(file.read().split()[1]) * 4096

    def body() -> object:
        kept = [each for _ in range(5) for each in use_and_drop(how)]
        before = measure()
        kept += [each for _ in range(20) for each in use_and_drop(how)]
        grown = measure() - before
        return sum(each() is not None for each in kept), grown // 2**20

    for alive, grown_mib in ranks.run(body):
        assert alive == 0
        assert grown_mib < 20  # 20 models that are kept have 40 or more


def test_horovods_class_is_for_annotations_and_isinstance_only() -> None:
    _, plain = make_plain()
    for op, kind in ((hvd.Average, _DistributedOptimizer), (hvd.Adasum, _DistributedAdasumOptimizer)):
        assert isinstance(hvd.DistributedOptimizer(plain, op=op), kind)
        assert not isinstance(plain, kind)
        assert type("Lightning", (type(hvd.DistributedOptimizer(plain, op=op)),), {}).__mro__[2] is kind
        with pytest.raises(TypeError, match=r"^Own: .* isinstance\(\) only, .* call hvd.DistributedOptimizer\("):
            type("Own", (kind,), {"_allreduce_grad_async": None})
        copied = type("Copied", (torch.optim.SGD,), dict(kind.__dict__))
        for create in (kind, copied):
            with pytest.raises(TypeError, match=r"call hvd\.DistributedOptimizer"):
                create(plain.param_groups, None)
