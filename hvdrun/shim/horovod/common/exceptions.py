"""The exceptions that programs catch."""

from horovod._offering import offer

_TABLE = {
    "worker_runtime.errors": ("HorovodInternalError", "HostsUpdatedInterrupt", "HorovodVersionMismatchError"),
}
offer(globals(), _TABLE)
