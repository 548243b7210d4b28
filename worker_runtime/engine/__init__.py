"""An operation from its submission to its result.

Any thread of the program submits operations to the engine, and gets handles, which give results or errors. The engine
submits each operation to the sequencer, and runs released ones on the groups of its `generation`. After the loss of a
rank its loss policy (`losses`) decides: pending operations fail, or `succession` runs them again in the next
generation.

Threads: the engine starts none. The thread that drives the connection starts operations, see `coordination`. The
thread that waits computes the result. The recovery thread calls `succession`, see `membership`.
"""
