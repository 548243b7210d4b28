"""Elastic training with PyTorch, which survives failures and changes of the job: `hvd.elastic`."""

from worker_runtime.elastic import ObjectState, State, run
from worker_runtime.torch.elastic.handlers import ElasticSampler
from worker_runtime.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
