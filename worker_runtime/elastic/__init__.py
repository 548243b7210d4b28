"""Elastic training: the state, the loop that runs a training function, and the sampler.

The loop runs the function. After a failure or a change of the job it restores or synchronizes the state, and runs the
function again. Users import these names from here, and from `horovod.common.elastic`.

Threads: the caller's. The thread `hvd-notices` (see `membership`) reports added and removed hosts to the state.
"""

from worker_runtime.elastic.loop import notification_manager, run, run_fn, run_through
from worker_runtime.elastic.states import ObjectState, State, check_names

__all__ = ["ObjectState", "State", "check_names", "notification_manager", "run", "run_fn", "run_through"]
