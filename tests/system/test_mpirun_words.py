"""A command line that was written for mpirun: it runs as it is, and what it says is done."""

import json
import shlex

from tests.system.launcher import Launcher

PRINTS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "HOROVOD_HOSTNAME", "NCCL_DEBUG")
print(json.dumps([*(os.environ.get(name) for name in names), os.getcwd(), sys.argv[1:]]))
"""


def test_options_of_mpirun_for_several_hosts_have_their_effect(hvdrun: Launcher) -> None:
    """The hosts are names of this machine; the line with real ones runs in the lab."""
    script = hvdrun.write("train.py", PRINTS)
    runs = hvdrun.directory / "runs"
    runs.mkdir()
    line = (
        "--no-prefix -np 2 -H localhost:2,127.0.0.1:2 -bind-to none -map-by node -x NCCL_DEBUG=INFO -mca pml ob1 "
        f"-mca btl ^openib -wdir runs python {script} --lr 1"
    )
    finished = hvdrun(*shlex.split(line))
    assert finished.returncode == 0, finished.stderr
    assert sorted(map(json.loads, finished.stdout.splitlines())) == [
        [str(rank), "0", host, "INFO", str(runs), ["--lr", "1"]] for rank, host in enumerate(("localhost", "127.0.0.1"))
    ]
    (sentence,) = finished.stderr.splitlines()
    assert sentence.startswith("hvdrun: -mca has no effect: there is no MPI underneath")
