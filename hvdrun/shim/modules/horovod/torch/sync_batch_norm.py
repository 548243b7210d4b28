"""Batch normalisation over all workers."""

from horovod._offering import offer

_TABLE = {"worker_runtime.torch": ("SyncBatchNorm",)}
offer(globals(), _TABLE)
