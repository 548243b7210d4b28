"""State that outlives failures and changes of the job, the loop that trains with it, and the sampler that deals data.

In come a state and a function that trains with it. The function runs; after a failure or a change of the job the state
is restored or synchronised, and the function runs again. Users import these names from here, and from
`horovod.common.elastic`.

Threads: the caller's. Hosts that come or go are told to a state by `hvd-notices`, see `membership`.
"""

from worker_runtime.elastic.loop import notification_manager, run, run_fn, run_through
from worker_runtime.elastic.states import ObjectState, State, check_names

__all__ = ["ObjectState", "State", "check_names", "notification_manager", "run", "run_fn", "run_through"]
