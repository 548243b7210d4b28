"""Membership: how a process joins a job, stays in it and leaves it.

The environment tells how to join: hvdrun's bootstrap, the variables of torchrun, mpirun or srun, or nothing. `RUNTIME`
then has this worker's ranks and the engine that runs its collectives.

Threads in elastic jobs: `hvd-recovery` handles losses, `hvd-notices` receives the notices of the rendezvous, and one
`hvd-formation` for each attempt connects the next generation. In all jobs of hvdrun `hvd-agent-watch` ends the process
after its agent. All other threads are the program's.
"""
