"""Makes a forkserver import torch._dynamo, which each worker's first optimizer would import in more than a second."""

import sys

if "worker_runtime.startup.forkserver" in sys.orig_argv:
    import torch._dynamo  # noqa: F401 - imported once, before workers are forked
