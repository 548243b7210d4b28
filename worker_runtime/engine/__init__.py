"""An operation from its submission to its result.

In come operations, from any thread of the program. Out come handles, and from these results or errors. The engine asks
the sequencer for each operation, runs what is released on the groups of its `generation`, and after the loss of a rank
does what its loss policy says (`losses`): it fails what is pending, or `succession` runs it again in the next
generation.

Threads: none of its own. Operations are started in the thread that drives the connection, see `coordination`; their
results are made in the thread that waits. `succession` is called by the thread that recovers, see `membership`.
"""
