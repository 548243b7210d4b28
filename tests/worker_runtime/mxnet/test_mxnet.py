"""What a script imports: all of Horovod's names, with Horovod's arguments in Horovod's order, and what it lacks."""

import inspect

import pytest

import worker_runtime.mxnet as hvd
from tests.house.sources import ROOT

# fmt: off
NAMES = [
    "Compression", "allgather_object", "broadcast_object", "allgather", "grouped_allgather", "allreduce", "allreduce_",
    "grouped_allreduce", "grouped_allreduce_", "alltoall", "broadcast", "broadcast_", "reducescatter",
    "grouped_reducescatter", "init", "shutdown", "is_initialized", "start_timeline", "stop_timeline", "size",
    "local_size", "cross_size", "rank", "local_rank", "cross_rank", "mpi_threads_supported", "mpi_enabled", "mpi_built",
    "gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "ProcessSet",
    "global_process_set", "add_process_set", "remove_process_set", "Average", "Sum", "Adasum", "Min", "Max", "Product",
    "DistributedOptimizer", "DistributedTrainer", "broadcast_parameters",
]
BEYOND = [
    "HorovodInternalError", "allgather_async", "allreduce_async", "allreduce_async_", "alltoall_async", "barrier",
    "broadcast_async", "broadcast_async_", "broadcast_optimizer_state", "elastic", "grouped_allgather_async",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter_async", "join", "poll",
    "pin_device", "prepare", "reducescatter_async", "scale_learning_rate", "split_data", "stopping", "synchronize",
]
# fmt: on

REDUCE = "average=None name=None priority=0 prescale_factor=1.0 postscale_factor=1.0 process_set op=None"
SCATTER = "op=0 name=None priority=0 process_set prescale_factor=1.0 postscale_factor=1.0"
COMMON_ARGUMENTS = "name=None priority=0 process_set"
SIGNATURES = {
    "allreduce": f"tensor {REDUCE}",
    "allreduce_": f"tensor {REDUCE}",
    "grouped_allreduce": f"tensors {REDUCE}",
    "grouped_allreduce_": f"tensors {REDUCE}",
    "allgather": f"tensor {COMMON_ARGUMENTS}",
    "grouped_allgather": f"tensors {COMMON_ARGUMENTS}",
    "broadcast": f"tensor root_rank {COMMON_ARGUMENTS}",
    "broadcast_": f"tensor root_rank {COMMON_ARGUMENTS}",
    "alltoall": f"tensor splits=None {COMMON_ARGUMENTS}",
    "reducescatter": f"tensor {SCATTER}",
    "grouped_reducescatter": f"tensors {SCATTER}",
    "broadcast_object": "obj=None root_rank=0 name=None process_set",
    "allgather_object": "obj name=None process_set",
    "broadcast_parameters": "params root_rank=0 prefix=None process_set",
    "broadcast_optimizer_state": "trainer root_rank=0 process_set",
    "init": "comm=None process_sets=None",
    "barrier": "process_set",
    "join": "device=-1",
    "poll": "handle",
    "synchronize": "handle",
    "DistributedOptimizer": "optimizer gradient_predivide_factor=1.0 num_groups=0 process_set",
    "DistributedTrainer": "params optimizer=None optimizer_params=None compression gradient_predivide_factor=1.0 "
    "prefix=None num_groups=0 process_set",
}


def describe(parameter: inspect.Parameter) -> str:
    """A parameter with its default, in the notation of SIGNATURES."""
    if parameter.default in (inspect.Parameter.empty, hvd.global_process_set, hvd.Compression.none):
        return parameter.name
    default = int(parameter.default) if parameter.name == "op" and parameter.default is not None else parameter.default
    return f"{parameter.name}={default!r}"


def test_the_module_has_all_of_horovods_names_and_some_of_its_own() -> None:
    assert len(NAMES) == 48
    assert sorted(hvd.__all__) == sorted([*NAMES, *BEYOND])
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_the_page_about_moving_from_horovod_names_them_all() -> None:
    page = (ROOT / "docs" / "moving" / "from-horovod.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_stand_in_horovods_order(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert [describe(parameter) for parameter in parameters] == SIGNATURES[name].split()
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


@pytest.mark.parametrize("name", [name for name in BEYOND if "_async" in name])
def test_asynchronous_forms_take_the_arguments_of_synchronous_ones(name: str) -> None:
    begun, run = (inspect.signature(getattr(hvd, each)).parameters for each in (name, name.replace("_async", "")))
    assert list(begun.values()) == list(run.values())
