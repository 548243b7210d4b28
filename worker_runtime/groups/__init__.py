"""torch's process groups: formed for a generation, and aborted when a member is lost.

The members of a generation meet in a store. `TorchGroups` then has one torch group for each process set, created when
it is first needed, on gloo, NCCL or UCC (`backends`). Each communication is a `Work`. Threads wait for works in slices,
so that signals and the loss of a rank can interrupt a wait.

Threads: the caller's. While a group is formed, `reachability` has a thread that probes missing members. NCCL's abort
has a thread, since it may never return.
"""
