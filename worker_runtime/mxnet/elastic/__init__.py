"""Elastic training with MXNet, which survives failures and changes of the job: `hvd.elastic`."""

from worker_runtime.elastic import ObjectState, State, run
from worker_runtime.mxnet.elastic.state import ElasticSampler, GluonState, ModuleState

__all__ = ["ElasticSampler", "GluonState", "ModuleState", "ObjectState", "State", "run"]
