"""The pure rules of the worker runtime: no input or output, no clock, no threads, no framework."""
