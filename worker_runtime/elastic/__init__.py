"""State that outlives failures and changes of the job, the loop that trains with it, and the sampler that deals data.

Users import these names from here, and from `horovod.common.elastic`.
"""

from worker_runtime.elastic.loop import notification_manager, run, run_fn, run_through
from worker_runtime.elastic.states import ObjectState, State, check_names

__all__ = ["ObjectState", "State", "check_names", "notification_manager", "run", "run_fn", "run_through"]
