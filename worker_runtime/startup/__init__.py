"""How a worker process begins and ends, before and after the job.

In comes what the agent tells a worker: its program, its environment, its limits. Out comes a process that runs the
program: forked from a server that has imported torch already (`forkserver`), or started anew. At the end the room finds
out with which exit code the process ends, and what its traceback shows.

Threads: `parent-watch`, in the processes that must not outlive their parent, waits for its end.
"""
