"""The exceptions that programs catch."""

from horovod._offering import offer

_TABLE = {
    "worker_runtime.errors": (
        "HorovodInternalError",
        "HostsUpdatedInterrupt",
        "HorovodVersionMismatchError",
        "get_version_mismatch_message",
    ),
}
offer(globals(), _TABLE)
