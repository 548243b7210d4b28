"""What a script imports: all of Horovod's names, with Horovod's arguments in Horovod's order."""

import inspect

import pytest
import torch

import worker_runtime.torch as hvd
from worker_runtime.torch import ops

# fmt: off
NAMES = [
    "elastic", "Compression", "allgather_object", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "allreduce", "allreduce_async", "allreduce_", "allreduce_async_", "grouped_allreduce",
    "grouped_allreduce_async", "grouped_allreduce_", "grouped_allreduce_async_", "sparse_allreduce_async", "allgather",
    "allgather_async", "grouped_allgather", "grouped_allgather_async", "broadcast", "broadcast_async", "broadcast_",
    "broadcast_async_", "alltoall", "alltoall_async", "reducescatter", "reducescatter_async", "grouped_reducescatter",
    "grouped_reducescatter_async", "join", "barrier", "poll", "synchronize", "init", "shutdown", "is_initialized",
    "start_timeline", "stop_timeline", "size", "local_size", "cross_size", "rank", "local_rank", "cross_rank",
    "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built",
    "ccl_built", "cuda_built", "rocm_built", "ProcessSet", "global_process_set", "add_process_set",
    "remove_process_set", "Average", "Sum", "Adasum", "Min", "Max", "Product", "HorovodInternalError",
    "DistributedOptimizer", "SyncBatchNorm",
]
# fmt: on

REDUCE = "average=None name=None op=None prescale_factor=1.0 postscale_factor=1.0 process_set"
REDUCE_COMPRESSED = "average=None name=None compression op=None prescale_factor=1.0 postscale_factor=1.0 process_set"
SCATTER = "name=None op=0 process_set prescale_factor=1.0 postscale_factor=1.0"
SCATTER_COMPRESSED = "name=None compression op=0 process_set prescale_factor=1.0 postscale_factor=1.0"
SIGNATURES = {
    "allreduce": f"tensor {REDUCE_COMPRESSED}",
    "allreduce_async": f"tensor {REDUCE}",
    "allreduce_": f"tensor {REDUCE}",
    "allreduce_async_": f"tensor {REDUCE}",
    "grouped_allreduce": f"tensors {REDUCE_COMPRESSED}",
    "grouped_allreduce_async": f"tensors {REDUCE}",
    "grouped_allreduce_": f"tensors {REDUCE}",
    "grouped_allreduce_async_": f"tensors {REDUCE}",
    "allgather": "tensor name=None process_set",
    "allgather_async": "tensor name=None process_set",
    "grouped_allgather": "tensors name=None process_set",
    "grouped_allgather_async": "tensors name=None process_set",
    "broadcast": "tensor root_rank name=None process_set",
    "broadcast_async": "tensor root_rank name=None process_set",
    "broadcast_": "tensor root_rank name=None process_set",
    "broadcast_async_": "tensor root_rank name=None process_set",
    "alltoall": "tensor splits=None name=None process_set",
    "alltoall_async": "tensor splits=None name=None process_set",
    "reducescatter": f"tensor {SCATTER_COMPRESSED}",
    "reducescatter_async": f"tensor {SCATTER}",
    "grouped_reducescatter": f"tensors {SCATTER_COMPRESSED}",
    "grouped_reducescatter_async": f"tensors {SCATTER}",
    "sparse_allreduce_async": "tensor name op process_set",
    "join": "device=-1",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "init": "comm=None process_sets=None",
    "broadcast_parameters": "params root_rank process_set",
    "broadcast_optimizer_state": "optimizer root_rank model=None process_set",
    "broadcast_object": "obj=None root_rank=0 name=None process_set",
    "allgather_object": "obj name=None process_set",
    "start_timeline": "file_path mark_cycles=False",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
}
OWN_DEFAULTS = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}


def describe(parameter: inspect.Parameter) -> str:
    """A parameter with its default, as above."""
    if parameter.default in (inspect.Parameter.empty, OWN_DEFAULTS.get(parameter.name, inspect.Parameter.empty)):
        return parameter.name
    default = int(parameter.default) if parameter.name == "op" and parameter.default is not None else parameter.default
    return f"{parameter.name}={default!r}"


def test_all_of_horovods_names_are_there_and_no_other() -> None:
    assert len(NAMES) == 67
    assert sorted(hvd.__all__) == sorted(NAMES)
    assert all(hasattr(hvd, name) for name in NAMES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_stand_in_horovods_order(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert [describe(parameter) for parameter in parameters] == SIGNATURES[name].split()
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


def test_all_public_functions_say_what_they_are_for() -> None:
    undocumented = [name for name in NAMES if callable(getattr(hvd, name)) and not getattr(hvd, name).__doc__]
    assert undocumented == []


def test_the_constants_are_horovods_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


def test_a_device_is_asked_for_under_horovods_name() -> None:
    assert hvd._check_has_gpu() == torch.cuda.is_available()


def test_what_horovod_keeps_beside_the_collectives_is_there() -> None:
    assert all(hasattr(ops, name) for name in ops.__all__)
    beside = {"is_homogeneous", "handle_average_backwards_compatibility", "_basics", "_handle_map"}
    functions = {"HorovodAllreduce", "HorovodAllgather", "HorovodBroadcast", "HorovodAlltoall", "HorovodReducescatter"}
    assert beside | functions <= set(ops.__all__)
