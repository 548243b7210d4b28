"""`python -m worker_runtime.tasks`: the program of the workers of `hvdrun.run()` and `hvdrun.Cluster`."""

import sys

from worker_runtime.tasks.loop import run_all

if __name__ == "__main__":
    sys.exit(run_all())
