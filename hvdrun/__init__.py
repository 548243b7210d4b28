"""hvdrun starts the workers of a distributed training job, watches them, and ends them.

From Python: `hvdrun.run(function, num_proc=2)`, `hvdrun.Cluster`, and their error `hvdrun.JobEndedError`. They are
imported when they are used. Pythons that are too old for hvdrun must be able to read this file.
"""

from hvdrun.version import __version__

TYPE_CHECKING = False  # as in `typing`, which they may not have
if TYPE_CHECKING:
    from hvdrun.cluster.cluster import Cluster, run
    from hvdrun.cluster.errors import JobEndedError

__all__ = ["Cluster", "JobEndedError", "__version__", "run"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from hvdrun.cluster import cluster  # noqa: PLC0415 - the command line and the workers need none of it

        return getattr(cluster, name)
    raise AttributeError("module 'hvdrun' has no attribute " + repr(name))
