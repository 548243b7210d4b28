"""Horovod's functions that are the same for all frameworks."""
