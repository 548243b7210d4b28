"""`Snapshot` refuses what lies on several ranks."""

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worker_runtime.errors import SnapshotError
from worker_runtime.torch import Snapshot


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def import_fsdp() -> Any:
    """Import what takes more than a second, in this test and not wherever tests are collected."""
    return importlib.import_module("torch.distributed.fsdp")


def import_optimizers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script, when torch imports it
        return importlib.import_module("torch.distributed.optim")


def make_zero(model: torch.nn.Module) -> torch.optim.Optimizer:
    return import_optimizers().ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1)


def make_local(model: torch.nn.Module) -> torch.optim.Optimizer:
    averagers = importlib.import_module("torch.distributed.algorithms.model_averaging.averagers")
    averager = averagers.PeriodicModelAverager(period=4)
    return import_optimizers().PostLocalSGDOptimizer(torch.optim.SGD(model.parameters()), averager)


def fully_shard(model: torch.nn.Module) -> torch.nn.Module:
    return import_fsdp().fully_shard(model)


def shard(model: torch.nn.Module) -> torch.nn.Module:
    return import_fsdp().FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda model: {"model": fully_shard(model)}, "FSDPModule"),
        (lambda model: {"model": shard(model)}, "FullyShardedData"),
        (lambda model: {"optimizer": make_zero(model)}, "ZeroRedund"),
        (lambda model: {"optimizer": torch.optim.SGD(fully_shard(model).parameters())}, "DTensor"),
        (lambda model: {"weight": next(fully_shard(model).parameters())}, "DTensor"),
        (lambda model: {"optimizer": torch.optim.SGD(shard(model).parameters())}, "FlatParameter"),
        (lambda model: {"optimizer": make_local(model)}, "PostLocalSGD"),
    ],
    ids=["fully_shard", "FSDP", "ZeRO", "fully_shard's optimizer", "a DTensor", "FSDP's optimizer", "local SGD"],
)
def test_objects_that_lie_on_several_ranks_are_refused_by_name(make: Any, name: str) -> None:
    given = make(torch.nn.Linear(2, 2))
    with pytest.raises(
        SnapshotError, match=f"{next(iter(given))} cannot be in a Snapshot: {name}.* lies on several ranks"
    ):
        Snapshot(**given)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.usefixtures("alone", "slot")
@pytest.mark.parametrize(("wrap", "name"), [(fully_shard, "FSDPModule"), (shard, "FlatParameter")])
@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_model_that_is_sharded_after_restore_is_refused(
    wrap: Any, name: str, local_rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    model = torch.nn.Linear(2, 2)
    kept = Snapshot(model=model)
    assert not kept.restore()
    wrap(model)
    with pytest.raises(SnapshotError, match=f"model cannot be in a Snapshot: {name}.* lies on several ranks"):
        kept.save()


class Gathering:
    """An object whose state_dict calls a collective, as of one that gathers a model of several ranks."""

    def __init__(self) -> None:
        self.gathered = 0

    def state_dict(self) -> dict[str, int]:
        """Count the calls."""
        self.gathered += 1
        return {"gathered": self.gathered}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Unused."""


def test_a_rank_without_memory_takes_part_in_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_JOB", "job")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    gathering = Gathering()
    kept = Snapshot(app=gathering)
    assert not kept.restore()
    kept.save()
    assert gathering.gathered == 1


class GatheringModule(Gathering, torch.nn.Module):
    """A module that makes its own state dict."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        super().__init__()


@pytest.mark.usefixtures("slot")
@pytest.mark.parametrize("local_rank", ["0", "1"])
@pytest.mark.parametrize("make", [Gathering, GatheringModule])
def test_a_state_that_is_gathered_from_all_ranks_is_asked_for_on_each(
    make: type[Gathering], local_rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    gathering = make()
    kept = Snapshot(app=gathering, every=2)
    assert not kept.restore()
    for _ in range(4):
        kept.save()
    assert gathering.gathered == 2


class Dynamic(Gathering):
    """An object that makes an attribute of each name, as a metric of ignite does."""

    def __getattr__(self, name: str) -> Any:
        return lambda: name


class Settings(dict[str, Any]):
    """A dict whose keys are attributes, as programs make it: another attribute is a KeyError."""

    __getattr__ = dict.__getitem__


@pytest.mark.usefixtures("slot")
@pytest.mark.parametrize(
    "value",
    [Dynamic(), Settings(lr=1), torch.nn.Linear, {"model": torch.nn.Linear}],
    ids=lambda value: type(value).__name__,
)
def test_an_object_with_unusual_attributes_is_kept(value: object) -> None:
    kept = Snapshot(value=value)
    assert not kept.restore()
    kept.save()


class Metric(torch.nn.Module):
    """As the class of that name."""


Metric.__module__ = "torchmetrics.metric"


class Accuracy(Metric):
    """One of that class."""


def test_a_metric_is_refused_by_name_but_not_within_a_model() -> None:
    with pytest.raises(SnapshotError, match="accuracy cannot be in a Snapshot: Accuracy lies on several ranks"):
        Snapshot(accuracy=Accuracy())
    Snapshot(model=torch.nn.Sequential(torch.nn.Linear(2, 2), Accuracy()))


class DeepSpeedEngine(torch.nn.Module):
    """As the class of that name."""


DeepSpeedEngine.__module__ = "deepspeed.runtime.engine"


def test_an_engine_of_deepspeed_is_refused_by_name() -> None:
    with pytest.raises(SnapshotError, match="model cannot be in a Snapshot: DeepSpeedEngine lies on several ranks"):
        Snapshot(model=DeepSpeedEngine())
