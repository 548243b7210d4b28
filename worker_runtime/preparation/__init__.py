"""What `hvd.prepare` does in every framework: the order of its steps, each rank's share of the data, and its device.

In come a framework's own steps and what the program gave. Out comes that, prepared.

Threads: the caller's.
"""

from worker_runtime.preparation.shares import RankOrder, count_share, deal, share_stream
from worker_runtime.preparation.steps import (
    DataNotSplitError,
    Framework,
    SchedulerExistsError,
    Switches,
    choose_device,
    run_steps,
)

__all__ = [
    "DataNotSplitError",
    "Framework",
    "RankOrder",
    "SchedulerExistsError",
    "Switches",
    "choose_device",
    "count_share",
    "deal",
    "run_steps",
    "share_stream",
]
