"""How a process comes into a job, stays in it and leaves it.

In comes the environment of the process: hvdrun's bootstrap, the variables of torchrun, mpirun or srun, or nothing. Out
come this worker's numbers and the engine that runs its collectives, both from the one `RUNTIME`.

Threads, in elastic jobs: `hvd-recovery` decides what follows a loss, `hvd-notices` hears what the rendezvous reports,
and one `hvd-formation` for each try to connect the next generation. In all jobs of hvdrun `hvd-agent-watch` ends the
process when its agent has gone. All others are the program's.
"""
