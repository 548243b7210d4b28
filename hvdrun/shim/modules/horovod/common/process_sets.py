"""Process sets."""

from horovod._offering import offer

_TABLE = {
    "worker_runtime.api.process_set": ("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"),
}
offer(globals(), _TABLE)
