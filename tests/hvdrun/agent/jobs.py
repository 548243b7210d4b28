"""The job of a test process, which no other has.

Agents look for, and end, whatever carries the name of their job, wherever on the host it was started: two tests that
run at the same time under one name end each other's workers.
"""

import os

JOB = f"job-{os.getpid()}"
ORIGIN = f"{JOB}/a"  # of what comes from its agent on host a
