"""Checkpoints of elastic states in a folder, from which another job can continue.

`all_ranks` saves and loads on all ranks: rank 0 reads and writes, and all ranks get the result. `folder` has the files,
which are written under another name, renamed, and have a checksum; the two newest are kept.

Threads: the caller's.
"""
