"""Checkpoints: what an elastic state keeps in a folder, so that another job can go on from there."""
