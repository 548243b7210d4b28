"""The state of elastic programs."""

from horovod._offering import offer

_TABLE = {
    "worker_runtime.torch.elastic.state": (
        *("ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState"),
        *("get_handler_registry", "set_handler_registry"),
    ),
}
offer(globals(), _TABLE)
