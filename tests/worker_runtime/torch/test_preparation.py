"""`hvd.prepare` does what the five steps do, to the last bit; each step can be left out, or made by itself."""

import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import worker_runtime.torch as hvd
from tests.house.sources import ROOT
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.training import make_model
from worker_runtime.torch.loaders import PassSampler
from worker_runtime.torch.proxies import OptimizerProxy

pytestmark = pytest.mark.devices

EXAMPLES = ROOT / "examples"
EPOCHS = 5


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of one in the test's own process."""
    hvd.init()
    yield
    hvd.shutdown()


def make_optimizer(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def read_bits(model: torch.nn.Module) -> bytes:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu().numpy().tobytes()


def run_example(name: str) -> dict[str, Any]:
    """The global names of an example after its run; its output is not shown."""
    with redirect_stdout(StringIO()):
        return runpy.run_path(str(EXAMPLES / name))


def build_by_hand(sampler: torch.utils.data.Sampler[int]) -> tuple[torch.nn.Module, Any, DataLoader[Any]]:
    """The five steps, with the model, the optimizer and the data of the examples."""
    loader = DataLoader(sampler.dataset, batch_size=32, sampler=sampler)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, optimizer, loader


def take_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    optimizer.zero_grad()
    device = next(model.parameters()).device
    torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
    optimizer.step()


def train_by_hand(data: TensorDataset) -> bytes:
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    model, optimizer, loader = build_by_hand(sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            take_step(model, optimizer, images, labels)
    return read_bits(model)


def train_by_hand_elastically(data: TensorDataset) -> bytes:
    model, optimizer, loader = build_by_hand(hvd.elastic.ElasticSampler(data))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=loader.sampler, epoch=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.epoch < EPOCHS:
            for step, (images, labels) in enumerate(loader):
                take_step(model, optimizer, images, labels)
                state.sampler.record_batch(step, len(labels))
                if step % 10 == 9:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(state)
    return read_bits(model)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [("torch_one_line.py", train_by_hand), ("torch_elastic_one_line.py", train_by_hand_elastically)],
)
def test_an_example_trains_as_its_five_steps_do_to_the_last_bit(
    ranks: RankPool, name: str, by_hand: Callable[..., bytes]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")

    def body() -> object:
        example = run_example(name)
        return read_bits(example["model"]), by_hand(example["data"])

    (first, first_by_hand), (second, second_by_hand) = ranks.run(body)
    assert first == second == first_by_hand == second_by_hand


@pytest.mark.parametrize("size", [1, 3])
def test_the_device_is_shown_in_one_line(ranks: RankPool, size: int) -> None:
    def body() -> object:
        return str(hvd.pin_device()), hvd.describe_device(hvd.pin_device())

    workers = "3 workers on 1 host" if size > 1 else "1 worker on 1 host"
    for device, line in ranks.run(body, size=size):
        assert re.fullmatch(rf"{device}( [^,]+)?, (gloo|nccl \d+\.\d+\.\d+); {workers}", line)
        assert (device, line) == ("cpu", f"cpu, gloo; {workers}") or device.startswith("cuda:")


@pytest.mark.usefixtures("alone")
def test_a_device_on_which_nccl_connects_the_workers_is_shown_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    assert hvd.describe_device(torch.device("cuda", 0)) == "cuda:0 NVIDIA H100, nccl 2.28.9; 1 worker on 1 host"


def test_the_examples_have_at_most_40_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*one_line.py")}
    assert len(lengths) >= 3
    assert max(lengths.values()) <= 40


def test_prepared_objects_are_returned_in_their_order(ranks: RankPool) -> None:
    def body() -> object:
        model, loader = make_model(), DataLoader(torch.arange(4))
        optimizer = make_optimizer(model)
        alone = hvd.prepare(model)
        pair = hvd.prepare(model, optimizer)
        three = hvd.prepare(model, pair[1], loader)
        without = hvd.prepare(model, loader=loader)
        assert alone is pair[0] is three[0] is without[0] is model
        assert pair[1] is three[1]  # the given optimizer averages already
        assert isinstance(pair[1], torch.optim.SGD)
        return type(three[2].sampler).__name__, type(without[1].sampler).__name__, len(without)

    assert ranks.run(body) == [("PassSampler", "PassSampler", 2)] * 2


def test_the_job_is_joined_where_that_was_not_done(ranks: RankPool) -> None:
    def body() -> object:
        hvd.shutdown()
        hvd.prepare(make_model())
        return hvd.is_initialized()

    assert ranks.run(body, size=1) == [True]


SWITCHES = ("pin_device", "wrap_optimizer", "broadcast", "split_data")


@pytest.mark.parametrize("off", [*SWITCHES, None])
def test_each_step_can_be_left_out(ranks: RankPool, off: str | None) -> None:
    def body() -> object:
        torch.manual_seed(hvd.rank())
        model, loader = torch.nn.Linear(1, 1), DataLoader(torch.arange(4))
        optimizer = make_optimizer(model)
        optimizer.param_groups[0]["momentum"] = float(hvd.rank())
        pinned: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "device_count", lambda: 2)
            patch.setattr(torch.cuda, "set_device", pinned.append)
            before = model.weight.item()
            model, optimizer, loader = hvd.prepare(model, optimizer, loader, **({off: False} if off else {}))
        is_roots = (model.weight.item() == before, optimizer.param_groups[0]["momentum"])
        return pinned, isinstance(optimizer, OptimizerProxy), is_roots, isinstance(loader.sampler, PassSampler)

    for rank, (pinned, is_wrapped, is_roots, is_split) in enumerate(ranks.run(body)):
        assert pinned == ([] if off == "pin_device" else [rank])
        assert is_wrapped == (off != "wrap_optimizer")
        assert is_roots == ((True, float(rank)) if off == "broadcast" else (rank == 0, 0.0))
        assert is_split == (off != "split_data")


def test_the_learning_rate_is_scaled_where_that_is_requested(ranks: RankPool) -> None:
    def body() -> object:
        model = make_model()
        _, plain = hvd.prepare(model, make_optimizer(model))
        _, scaled = hvd.prepare(model, make_optimizer(model), scale_lr=True)
        torch.optim.lr_scheduler.StepLR(scaled, 1)
        with pytest.raises(ValueError, match="a scheduler has stored it; create the scheduler afterwards"):
            hvd.scale_learning_rate(scaled)
        return plain.param_groups[0]["lr"], scaled.param_groups[0]["lr"]

    assert ranks.run(body) == [(0.1, 0.2)] * 2


def test_the_elastic_state_has_what_was_prepared_and_scales_with_the_job(ranks: RankPool) -> None:
    def body() -> object:
        model = make_model()
        state = hvd.elastic.TorchState(epoch=0)
        model, optimizer, loader = hvd.prepare(
            model, make_optimizer(model), DataLoader(torch.arange(4)), state=state, scale_lr=True
        )
        assert (state.model, state.optimizer, state.sampler) == (model, optimizer, loader.sampler)
        bits = read_bits(model)
        with torch.no_grad():
            model[0].weight.zero_()
        state.restore()
        assert read_bits(model) == bits
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker_runtime.preparation.RUNTIME", SimpleNamespace(assignment=SimpleNamespace(size=8)))
            for _ in range(2):
                state.on_reset()
        return optimizer.param_groups[0]["lr"]

    assert ranks.run(body) == [pytest.approx(0.8)] * 2


def test_a_second_model_does_not_replace_the_first_in_the_state(ranks: RankPool) -> None:
    def body() -> object:
        model, judge, state = make_model(), make_model(), hvd.elastic.TorchState(epoch=0)
        model, optimizer = hvd.prepare(model, make_optimizer(model), state=state)
        hvd.prepare(torch.nn.Sequential(model), optimizer, state=state)  # of the same parameters
        with pytest.raises(ValueError, match="the state has the model of another prepare"):
            hvd.prepare(judge, make_optimizer(judge), state=state)
        other = hvd.elastic.TorchState(optimizer=optimizer, epoch=0)
        with pytest.raises(ValueError, match="the state has the optimizer of another prepare"):
            hvd.prepare(judge, state=other)
        judge, judging = hvd.prepare(judge, make_optimizer(judge))
        state.register(judge=judge, judge_optimizer=judging)
        return list(state._handlers), state.optimizer is optimizer

    assert ranks.run(body) == [(["model", "optimizer", "judge", "judge_optimizer"], True)] * 2


def test_a_batch_counts_when_the_state_looks_for_changes_of_the_job(ranks: RankPool) -> None:
    def body() -> object:
        model, state = make_model(), hvd.elastic.TorchState(epoch=0)
        _, loader = hvd.prepare(model, loader=DataLoader(torch.arange(6)), state=state)
        state.register_reset_callbacks([int])
        state._size = 2  # so the state has another reason to begin again
        next(iter(loader))
        return state.waits_for_reset(), loader.sampler.processed_num

    assert ranks.run(body, size=1) == [(True, 1)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda model: (make_optimizer(model), model), "a torch.nn.Module was expected first, not SGD"),
        (lambda model: (model, DataLoader(torch.arange(4))), "an optimizer was expected, not DataLoader"),
        (lambda model: (model, make_optimizer(make_model())), r"\d of the optimizer's parameters are not the model's"),
        (lambda model: (model, make_optimizer(model), iter([])), "not a torch.utils.data.DataLoader; give each rank"),
    ],
)
def test_an_object_that_cannot_be_prepared_is_refused(
    ranks: RankPool, arguments: Callable[..., tuple[Any, ...]], sentence: str
) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match=sentence):
            hvd.prepare(*arguments(make_model()))

    ranks.run(body, size=1)


@pytest.mark.parametrize("prepare", [hvd.prepare, lambda model: hvd.prepare(model, make_optimizer(model))])
def test_a_lazy_module_must_see_a_batch_first(ranks: RankPool, prepare: Callable[[torch.nn.Module], object]) -> None:
    def body() -> None:
        model = torch.nn.Sequential(torch.nn.LazyLinear(1))
        with pytest.raises(ValueError, match=r"the parameter '0.(weight|bias)' has no shape yet.*call the model once"):
            prepare(model)
        model(torch.ones(2, 3))
        prepare(model)

    ranks.run(body, size=2)


def test_a_state_without_an_epoch_is_refused(ranks: RankPool) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match=r"give state=hvd.elastic.TorchState\(epoch=0\)"):
            hvd.prepare(make_model(), loader=DataLoader(torch.arange(4)), state=hvd.elastic.TorchState())

    ranks.run(body, size=1)
