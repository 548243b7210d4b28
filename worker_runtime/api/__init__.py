"""Horovod's functions, written once for both frameworks.

`basics` and `functions` have those without arrays: `init`, `rank`, `join`, `broadcast_object`. `process_set` has
process sets. `calls` runs the collectives, whose arguments the framework packages declare. `names` lists what both
packages export.

Threads: the caller's.
"""
