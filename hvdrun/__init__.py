"""hvdrun starts the workers of a distributed training job, watches them, and ends them.

From Python: `hvdrun.run(function, num_proc=2)`, and `hvdrun.Cluster`. They are imported when they are used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdrun.cluster.cluster import Cluster, run

__all__ = ["Cluster", "run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
    if name in __all__:
        from hvdrun.cluster import cluster  # noqa: PLC0415 - the command line and the workers need none of it

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
