"""The optimizer."""

from horovod._offering import offer

_TABLE = {"worker_runtime.torch": ("DistributedOptimizer",)}
offer(globals(), _TABLE)
