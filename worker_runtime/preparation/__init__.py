"""What `hvd.prepare` does in every framework: the order of its steps, each rank's share of the data, and its device."""

from worker_runtime.preparation.devices import choose_device
from worker_runtime.preparation.errors import DataNotSplitError, SchedulerExistsError
from worker_runtime.preparation.shares import RankOrder, count_share, deal, share_stream
from worker_runtime.preparation.steps import Framework, Switches, run_steps

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
