"""Checkpoints: what an elastic state keeps in a folder, so that another job can go on from there.

In come a state and a folder. `all_ranks` says what rank 0 writes or reads, and what all ranks get of it; `folder` knows
the files: written beside, renamed, with a checksum, the two newest kept.

Threads: the caller's.
"""
