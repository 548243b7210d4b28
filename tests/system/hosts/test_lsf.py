"""A job of LSF: its host file gives hosts and slots, and its own command starts the agents."""

import pytest

from tests.deploy.samples import check_sample
from tests.system.hosts.cluster import Cluster

TRAIN = "import os; print('rank', os.environ['HOROVOD_RANK'], 'on', os.environ['HOROVOD_HOSTNAME'])\n"


@pytest.mark.nightly
@pytest.mark.sample
def test_a_job_of_lsf_trains_on_its_hosts(pair: Cluster, *, rewrite: bool) -> None:
    pair.write("blaunch", '#!/bin/sh\nexec ssh "$@"\n', mode=0o755)  # in the place of LSF's own
    pair.write("train.py", TRAIN)
    variables = {
        "PATH": f"{pair.directory}:{pair.lab.launcher.environment()['PATH']}",
        "LSB_JOBID": "6",
        "LSB_DJOB_HOSTFILE": str(pair.write("nodes", "host1\nhost1\nhost2\nhost2\n")),
    }
    finished = pair("--rsh", "blaunch", "python", "train.py", environment=variables)
    assert finished.returncode == 0, finished.stderr
    check_sample("lsf", finished.stderr + finished.stdout, rewrite=rewrite)
