"""The parts of an elastic program that know no framework."""

from horovod._offering import offer

_TABLE = {"worker_runtime.elastic": ("State", "ObjectState", "run_fn", "notification_manager")}
offer(globals(), _TABLE)
