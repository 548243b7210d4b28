"""`hvd.elastic`."""

from horovod._offering import offer
from horovod.torch.elastic import sampler, state

_TABLE = {"worker_runtime.torch.elastic": ("ElasticSampler", "ObjectState", "State", "TorchState", "run")}
__all__ = ["sampler", "state"]
offer(globals(), _TABLE)
