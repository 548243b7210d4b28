"""Horovod's functions that are the same for all frameworks.

In come the calls of a program: `init`, `rank`, process sets, objects to broadcast. Out come plain values, and for the
collectives of `torch` and `mxnet` what all of them need first (`calls`): the engine, the members and a name. `names`
lists what programs import from both frameworks.

Threads: the caller's.
"""
