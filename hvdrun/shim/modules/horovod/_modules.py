"""The modules below `horovod`: their names, where `worker_runtime` has them, and the finder that imports them.

A module that programs import from Horovod has a row in `MODULES` instead of a file. A name that the installed
`worker_runtime` lacks is left out, so that a program fails where it uses the name, with Python's own error; a test
proves that the `worker_runtime` of the same version lacks none.

The syntax of this file is that of Python 3.8, as in `__init__.py`.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Sequence  # noqa: UP035 - the syntax is that of Python 3.8

_RUNTIME = "worker_runtime"
_NEEDED = {
    "hvdrun": "has no hvdrun, which serves it: install hvdrun there",
    _RUNTIME: "has no hvdrun, which serves it: install hvdrun there",
    "torch": "has no PyTorch: install torch there",
}

_QUERIES = (
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline"),
    *("size", "local_size", "cross_size", "rank", "local_rank", "cross_rank"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    *("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"),
    *("Average", "Sum", "Adasum", "Min", "Max", "Product"),
)
_TORCH = (
    *("allreduce", "allreduce_async", "allreduce_", "allreduce_async_", "sparse_allreduce_async"),
    *("grouped_allreduce", "grouped_allreduce_async", "grouped_allreduce_", "grouped_allreduce_async_"),
    *("allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"),
    *("broadcast", "broadcast_async", "broadcast_", "broadcast_async_", "alltoall", "alltoall_async"),
    *("reducescatter", "reducescatter_async", "grouped_reducescatter", "grouped_reducescatter_async"),
    *("join", "barrier", "poll", "synchronize"),
    *_QUERIES,
)
_MXNET = (
    *("allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_", "allgather", "grouped_allgather"),
    *("broadcast", "broadcast_", "alltoall", "reducescatter", "grouped_reducescatter"),
    *_QUERIES,
)
_AUTOGRAD = (
    *("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodGroupedAllgather"),
    *("HorovodBroadcast", "HorovodAlltoall", "HorovodReducescatter", "HorovodGroupedReducescatter"),
)
_INTERNALS = {
    "worker_runtime.api.basics": ("is_homogeneous", "handle_average_backwards_compatibility", "_basics"),
    "worker_runtime.errors": ("HorovodInternalError",),
}
_COMPRESSION = ("Compression", "Compressor", "FP16Compressor", "NoneCompressor")
_TORCH_FUNCTIONS = ("allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters")
_MXNET_FUNCTIONS = ("allgather_object", "broadcast_object", "broadcast_parameters")

# {module of Horovod: {module of the runtime: the names that it provides}}
MODULES: "dict[str, dict[str, Sequence[str]]]" = {
    "horovod.runner": {"hvdrun.cluster.horovod": ("run",)},
    "horovod.common.basics": {"worker_runtime.api.basics": ("HorovodBasics",)},
    "horovod.common.elastic": {"worker_runtime.elastic": ("State", "ObjectState", "run_fn", "notification_manager")},
    "horovod.common.exceptions": {
        "worker_runtime.errors": (
            *("HorovodInternalError", "HostsUpdatedInterrupt"),
            *("HorovodVersionMismatchError", "get_version_mismatch_message"),
        ),
    },
    "horovod.common.process_sets": {
        "worker_runtime.api.process_set": ("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"),
    },
    "horovod.torch": {
        "worker_runtime.torch": (
            *_TORCH,
            *_TORCH_FUNCTIONS,
            *("Compression", "DistributedOptimizer", "HorovodInternalError", "SyncBatchNorm", "_check_has_gpu"),
        ),
    },
    "horovod.torch.compression": {"worker_runtime.torch.compression": _COMPRESSION},
    "horovod.torch.elastic": {
        "worker_runtime.torch.elastic": ("ElasticSampler", "ObjectState", "State", "TorchState", "run"),
    },
    "horovod.torch.elastic.sampler": {"worker_runtime.torch.elastic": ("ElasticSampler",)},
    "horovod.torch.elastic.state": {
        "worker_runtime.torch.elastic.state": (
            *("ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState"),
            *("get_handler_registry", "set_handler_registry"),
        ),
    },
    "horovod.torch.functions": {"worker_runtime.torch": _TORCH_FUNCTIONS},
    "horovod.torch.mpi_ops": {
        "worker_runtime.torch": _TORCH,
        "worker_runtime.torch.autograd.functions": _AUTOGRAD,
        "worker_runtime.api.functions": ("_handle_map",),
        **_INTERNALS,
    },
    "horovod.torch.optimizer": {
        "worker_runtime.torch.optimizer": (
            *("DistributedOptimizer", "_DistributedOptimizer", "_DistributedAdasumOptimizer"),
        ),
    },
    "horovod.torch.sync_batch_norm": {"worker_runtime.torch": ("SyncBatchNorm",)},
    "horovod.mxnet": {
        "worker_runtime.mxnet": (
            *_MXNET,
            *_MXNET_FUNCTIONS,
            *("Compression", "DistributedOptimizer", "DistributedTrainer"),
        ),
    },
    "horovod.mxnet.compression": {"worker_runtime.mxnet.compression": _COMPRESSION},
    "horovod.mxnet.elastic": {
        "worker_runtime.mxnet.elastic": ("ElasticSampler", "GluonState", "ModuleState", "ObjectState", "State", "run"),
    },
    "horovod.mxnet.functions": {"worker_runtime.mxnet": _MXNET_FUNCTIONS},
    "horovod.mxnet.mpi_ops": {"worker_runtime.mxnet": _MXNET, **_INTERNALS},
}
# A module of Horovod, and the module of the runtime whose names it has besides those listed above.
WHOLE = {"horovod.torch": "worker_runtime.torch", "horovod.mxnet": "worker_runtime.mxnet"}
UNSERVED = (
    *("horovod.data", "horovod.keras", "horovod.ray", "horovod.spark", "horovod.tensorflow"),
    *("horovod.runner.common", "horovod.runner.driver", "horovod.runner.elastic", "horovod.runner.gloo_run"),
    *("horovod.runner.http", "horovod.runner.js_run", "horovod.runner.launch", "horovod.runner.mpi_run"),
    *("horovod.runner.run_task", "horovod.runner.task", "horovod.runner.task_fn", "horovod.runner.util"),
)
_SERVED = "horovod.torch, horovod.mxnet, horovod.common and horovod.run()"
_REMEDY = "Where Horovod itself is installed, hvdrun leaves the name to it (--horovod-shim auto)."


class UnservedError(ImportError):
    """A part of Horovod that this project does not serve.

    Cause: The script imports a part of Horovod that hvdrun does not have.
    Remedy: See what [is not served](../moving/from-horovod.md).
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is not served: the horovod of this process is hvdrun's own, which has {_SERVED}. {_REMEDY}",
            name=name,
        )


class Finder(MetaPathFinder, Loader):
    """Finds and imports the modules of the tables, once it is on `sys.meta_path`."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> "ModuleSpec | None":
        """Return the module's spec; None for a name that is in no table."""
        del path, target
        if fullname not in MODULES and fullname not in UNSERVED:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in (*MODULES, *UNSERVED))
        spec = ModuleSpec(fullname, self, origin=__file__, is_package=is_package)
        spec.has_location = True  # so that the module has a `__file__`, which programs print
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Import the module's submodules, and put its names into it.

        Raises:
            ImportError: hvdrun does not serve the module, or this Python lacks hvdrun or PyTorch.
        """
        name = module.__name__
        if name in UNSERVED:
            raise UnservedError(name)
        submodules = list_submodules(name)
        for each in submodules:
            import_module(f"{name}.{each}")
        offer(vars(module), MODULES[name], submodules)


def list_submodules(name: str) -> "Sequence[str]":
    """The names of the modules directly below the module `name`, without their package."""
    return [each.rpartition(".")[2] for each in MODULES if each.rpartition(".")[0] == name]


def offer(namespace: "dict[str, Any]", table: "dict[str, Sequence[str]]", submodules: "Sequence[str]" = ()) -> None:
    """Put the names of a table into a module's namespace, and the public ones into its `__all__`.

    Raises:
        ImportError: this Python lacks hvdrun or PyTorch, or these cannot be imported.
    """
    name = str(namespace["__name__"])
    found = {}
    for source, names in table.items():
        module = find_module(source, name)
        found.update({each: getattr(module, each) for each in names if hasattr(module, each)})
    if name in WHOLE:
        module = find_module(WHOLE[name], name)
        rest = [each for each in getattr(module, "__all__", ()) if each not in found and each not in submodules]
        late = [each for each in rest if each not in vars(module)]
        found.update({each: getattr(module, each) for each in rest if each not in late})

        def find_late(each: str) -> "Any":
            """The names that the runtime imports at their first use."""
            if each in late:
                return getattr(module, each)
            raise AttributeError(f"module {name!r} has no attribute {each!r}")

        namespace["__getattr__"] = find_late
    else:
        late = []
    namespace.update(found)
    namespace["__all__"] = [*submodules, *(each for each in found if not each.startswith("_")), *late]


def find_module(source: str, importer: str) -> "ModuleType | None":
    """Import a module of the runtime for another module; None where this version has no such module.

    Message: MODULE cannot be imported: PYTHON has no PyTorch: install torch there
    Cause: The Python of the workers has no torch: it is another Python than you think, or torch is not installed.
    Remedy: Activate the environment that has torch before you start hvdrun, or install torch.

    Message: MODULE cannot be imported: PYTHON has no hvdrun, which serves it: install hvdrun there
    Cause: The Python of the workers has no hvdrun.
    Remedy: Start the script with a Python that has it, or install hvdrun there.

    Raises:
        ImportError: this Python lacks hvdrun or PyTorch, or these cannot be imported.
    """
    try:
        return import_module(source)
    except ModuleNotFoundError as error:
        if error.name in _NEEDED:
            message = f"{importer} cannot be imported: {sys.executable} {_NEEDED[error.name]}"
            raise ImportError(message, name=importer) from error
        if error.name is not None and f"{source}.".startswith(f"{error.name}."):
            return None
        raise
