"""Broadcasts of parameters and Python objects."""

from horovod._offering import offer

_TABLE = {"worker_runtime.mxnet": ("allgather_object", "broadcast_object", "broadcast_parameters")}
offer(globals(), _TABLE)
