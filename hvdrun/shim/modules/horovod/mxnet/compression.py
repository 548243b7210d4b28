"""Compression of gradients."""

from horovod._offering import offer

_TABLE = {"worker_runtime.mxnet.compression": ("Compression", "Compressor", "FP16Compressor", "NoneCompressor")}
offer(globals(), _TABLE)
