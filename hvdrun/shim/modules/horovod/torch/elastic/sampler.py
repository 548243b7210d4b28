"""The sampler of elastic programs."""

from horovod._offering import offer

_TABLE = {"worker_runtime.torch.elastic": ("ElasticSampler",)}
offer(globals(), _TABLE)
