"""The names that `worker_runtime.torch` and `worker_runtime.mxnet` both export, besides those of `basics`."""

from worker_runtime.api.functions import allgather_object, broadcast_object
from worker_runtime.api.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import HorovodInternalError

Average, Sum, Adasum, Min, Max, Product = Reduction

__all__ = ["Adasum", "Average", "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum"]
__all__ += ["add_process_set", "allgather_object", "broadcast_object", "global_process_set", "remove_process_set"]
