"""A worker that runs the functions of `hvdrun.run()`, one after the other.

It gets pickled functions from the agent's socket, and returns their results or exceptions.

Threads: only the main thread.
"""
