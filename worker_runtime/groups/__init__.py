"""torch's process groups: formed for a generation, watched while they run, aborted when a member is lost.

In come this worker's numbers and the store in which the members of a generation meet. Out come `TorchGroups`: one torch
group for each process set, made when it is first needed, on gloo, NCCL or UCC (`backends`). All that runs on it is a
`Work`, which is waited for in slices, so that a wait is open to signals and to the loss of a rank.

Threads: the caller's. While a group is formed, `reachability` has one that probes the members that have not come.
NCCL's abort has one of its own, since it may never return.
"""
