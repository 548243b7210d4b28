"""The pure rules of the worker runtime: no IO, clock, threads or framework."""
