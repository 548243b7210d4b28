"""The start and the end of a worker process.

The forkserver, which has imported torch, forks worker processes for the agent. Each becomes like an executed one: its
program, environment and limits. At the end, `program_end` finds the exit code, and shortens the traceback.

Threads: `parent-watch` waits for the end of the parent, in processes that must not outlive it.
"""
