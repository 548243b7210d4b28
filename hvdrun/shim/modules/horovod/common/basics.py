"""The class of `mpi_ops._basics`, by which programs that look inside reach whatever is no collective."""

from horovod._offering import offer

_TABLE = {"worker_runtime.api.basics": ("HorovodBasics",)}
offer(globals(), _TABLE)
