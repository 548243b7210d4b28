"""Snapshots: the state of a plain training loop in memory that outlives the worker, and how a later worker finds it."""
