"""How a process comes into a job, stays in it and leaves it."""
