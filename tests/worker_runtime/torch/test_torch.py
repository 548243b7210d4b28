"""What a script imports: all of Horovod's names, with Horovod's arguments in Horovod's order."""

import inspect
import itertools

import pytest
import torch

import worker_runtime.torch as hvd
from tests.house.sources import ROOT
from tests.worker_runtime.operations import FORMS, KINDS, NEEDED, call
from tests.worker_runtime.ranks import RankPool

# fmt: off
OTHER_NAMES = [
    "elastic", "Compression", "shutdown", "is_initialized", "stop_timeline", "size", "local_size", "cross_size", "rank",
    "local_rank", "cross_rank", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
    "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "global_process_set", "Average", "Sum",
    "Adasum", "Min", "Max", "Product", "HorovodInternalError", "SyncBatchNorm",
]
# fmt: on
BEYOND = ["Snapshot", "SnapshotError", "describe_device", "pin_device", "prepare", "scale_learning_rate"]
BEYOND += ["split_data", "stopping"]

REDUCE = "average=None name=None{} op=None prescale_factor=1.0 postscale_factor=1.0 process_set"
SCATTER = "name=None{} op=0 process_set prescale_factor=1.0 postscale_factor=1.0"
OF_KIND = {
    "allreduce": REDUCE,
    "allgather": "name=None process_set",
    "broadcast": "root_rank name=None process_set",
    "alltoall": "splits=None name=None process_set",
    "reducescatter": SCATTER,
}


def write_signature(form: str) -> str:
    """As below; what neither works in place nor is begun can be compressed."""
    compression = "" if "_async" in form or form.endswith("_") else " compression"
    return f"tensor{'s' * form.startswith('grouped_')} {OF_KIND[KINDS[form]].format(compression)}"


SIGNATURES = {form: write_signature(form) for form in FORMS} | {
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
    "DistributedOptimizer": "optimizer named_parameters=None compression backward_passes_per_step=1 op=0 "
    "gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False process_set",
}
OWN_DEFAULTS = {"process_set": hvd.global_process_set, "compression": hvd.Compression.none}


def describe(parameter: inspect.Parameter) -> str:
    """A parameter with its default, in the notation of SIGNATURES."""
    if parameter.default in (inspect.Parameter.empty, OWN_DEFAULTS.get(parameter.name, inspect.Parameter.empty)):
        return parameter.name
    default = int(parameter.default) if parameter.name == "op" and parameter.default is not None else parameter.default
    return f"{parameter.name}={default!r}"


def test_the_module_has_all_of_horovods_names_and_some_of_its_own() -> None:
    assert len([*SIGNATURES, *OTHER_NAMES]) == 67
    assert sorted(hvd.__all__) == sorted([*SIGNATURES, *OTHER_NAMES, *BEYOND])
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_the_page_about_moving_from_horovod_names_them_all() -> None:
    page = (ROOT / "docs" / "moving" / "from-horovod.md").read_text(encoding="utf-8")
    assert [name for name in [*SIGNATURES, *OTHER_NAMES] if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_stand_in_horovods_order(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert [describe(parameter) for parameter in parameters] == SIGNATURES[name].split()
    assert all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


def test_all_public_functions_have_a_docstring() -> None:
    undocumented = [name for name in hvd.__all__ if callable(getattr(hvd, name)) and not getattr(hvd, name).__doc__]
    assert undocumented == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_docstring_explains_each_argument(name: str) -> None:
    function = getattr(hvd, name)
    text = inspect.getdoc(function) or ""
    unexplained = [each for each in inspect.signature(function).parameters if f"\n    {each}: " not in text]
    assert unexplained == []


def test_the_constants_are_horovods_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


def test_a_device_is_requested_under_horovods_name() -> None:
    assert hvd._check_has_gpu() == torch.cuda.is_available()


def compute_everything() -> list[object]:
    """Each operation once, small and large, with the same values whatever a program's defaults are."""
    rank, size = hvd.rank(), hvd.size()
    results: list[object] = []
    for count, dtype in itertools.product((6, 60_000), (torch.float32, torch.bfloat16, torch.int16, torch.int64)):
        x = torch.ones(count, dtype=dtype, device="cpu") * (rank + 1)
        splits = torch.full((size,), count // size, dtype=torch.int32, device="cpu")
        for form in FORMS:
            result = call(hvd, form, x.clone(), **NEEDED.get(KINDS[form], {}))
            results += result if isinstance(result, tuple) else [result]
        results += [hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(x, op=hvd.Max), *hvd.alltoall(x, splits)]
        results += [hvd.allgather(x[: count - rank]), *hvd.grouped_allreduce([x, x[:5]])]
        if dtype.is_floating_point:
            results.append(hvd.allreduce(x, op=hvd.Adasum))
    table = torch.full((3, 3), 1.5, dtype=torch.float32, device="cpu")
    truths = torch.full((6,), rank == 0, dtype=torch.bool, device="cpu")
    results += [hvd.allreduce(truths, op=hvd.Max), hvd.sparse_allreduce_async(table.to_sparse(), "s", hvd.Sum)()]
    results += [hvd.broadcast_object({"rank": rank}, 1), hvd.allgather_object(rank)]
    for form, options in [*((kind, NEEDED.get(kind, {})) for kind in OF_KIND), ("allreduce", {"op": hvd.Max})]:
        x = torch.ones(6, dtype=torch.float32, device="cpu").requires_grad_()
        y = call(hvd, form, x, **options)
        y.backward(torch.ones_like(y))
        results += [y.detach(), x.grad]
    settings = {}, {"compression": hvd.Compression.fp16}, {"op": hvd.Adasum}, {"groups": 1}
    return results + [train(each) for each in settings]


def train(arguments: dict[str, object]) -> torch.Tensor:
    """Some steps; the parameter at their end."""
    weight = torch.full((3, 4), 2.0, dtype=torch.float32, device="cpu").requires_grad_()
    table = torch.full((3, 4), 2.0, dtype=torch.float32, device="cpu").requires_grad_()
    optimizer = torch.optim.SGD([weight, table], lr=0.1, momentum=0.9)
    hvd.broadcast_parameters([weight.detach(), table.detach()], 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer = hvd.DistributedOptimizer(optimizer, **arguments)
    for _ in range(4):
        optimizer.zero_grad()
        indices = torch.arange(2, dtype=torch.int64, device="cpu")
        rows = torch.nn.functional.embedding(indices, table, sparse="op" not in arguments)
        loss = (weight * weight).sum() * (hvd.rank() + 1) + rows.sum()
        loss.backward(torch.ones_like(loss))
        optimizer.step()
    return weight.detach() + table.detach()


@pytest.mark.parametrize("default", ["device", "dtype"])
def test_a_program_s_defaults_for_its_own_tensors_change_nothing(ranks: RankPool, default: str) -> None:
    """The meta device stands for any other than the CPU; what lay there would have lost its values."""

    def body() -> bool:
        plain = compute_everything()
        torch.set_default_device("meta" if default == "device" else None)
        torch.set_default_dtype(torch.float64 if default == "dtype" else torch.float32)
        try:
            other = compute_everything()
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
        for mine, theirs in zip(plain, other, strict=True):
            if isinstance(mine, torch.Tensor):
                assert (mine.dtype, mine.device) == (theirs.dtype, theirs.device)
                assert torch.equal(mine.to_dense(), theirs.to_dense())
            else:
                assert mine == theirs
        return len(plain) > 100

    assert ranks.run(body) == [True] * 2
