"""Broadcasts of parameters, optimizer state and Python objects."""

from horovod._offering import offer

_TABLE = {
    "worker_runtime.torch": (
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
    ),
}
offer(globals(), _TABLE)
