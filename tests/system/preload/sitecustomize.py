"""Has a forkserver import what torch leaves to the first optimizer, which would cost each worker more than a second."""

import sys

if "worker_runtime.startup.forkserver" in sys.orig_argv:
    import torch._dynamo  # noqa: F401 - for the workers
