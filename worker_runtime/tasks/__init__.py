"""How a worker runs the functions of `hvdrun.run()`, one after the other.

In come pickled functions from the agent's socket. Out go their results, or their exceptions in words.

Threads: the main one alone.
"""
