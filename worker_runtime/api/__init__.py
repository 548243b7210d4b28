"""Horovod's functions, each written once for all frameworks.

In come the calls of a program: `init`, `rank`, process sets, objects to broadcast (`basics`, `functions`); and of a
framework's package, which declares the arguments of its collectives, requests to run one on its arrays (`calls`). Out
come plain values, and arrays. `names` lists what programs import from both frameworks.

Threads: the caller's.
"""
