"""Starting jobs from Python."""

from horovod._offering import offer

_TABLE = {"hvdrun.cluster.horovod": ("run",)}
offer(globals(), _TABLE)
