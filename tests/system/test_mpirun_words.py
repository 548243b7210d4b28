"""Command lines that were written for mpirun: they run as they are, and what they say is done."""

import json
import shlex

from tests.system.launcher import Launcher

TELLS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "HOROVOD_HOSTNAME", "NCCL_DEBUG", "HIDDEN")
print(json.dumps([*(os.environ.get(name) for name in names), os.getcwd(), sys.argv[1:]]))
"""


def run(hvdrun: Launcher, line: str, **environment: str) -> tuple[list[list[object]], str]:
    """What each worker told, in the order of the ranks, and what hvdrun said itself."""
    hvdrun.write("train.py", TELLS)
    finished = hvdrun("--no-prefix", *shlex.split(line), environment=environment)
    assert finished.returncode == 0, finished.stderr
    return sorted(map(json.loads, finished.stdout.splitlines())), finished.stderr


def test_the_words_of_a_line_for_several_hosts_do_what_they_say(hvdrun: Launcher) -> None:
    """The hosts are names of this machine; the line with real ones runs in the lab."""
    (hvdrun.directory / "runs").mkdir()
    line = (
        "-np 2 -H localhost:2,127.0.0.1:2 -bind-to none -map-by node -x NCCL_DEBUG=INFO -mca pml ob1 "
        f"-mca btl ^openib -wdir runs python {hvdrun.directory}/train.py --lr 1"
    )
    told, said = run(hvdrun, line)
    runs = str(hvdrun.directory / "runs")
    assert told == [
        [str(rank), "0", host, "INFO", None, runs, ["--lr", "1"]]
        for rank, host in enumerate(("localhost", "127.0.0.1"))
    ]
    (sentence,) = said.splitlines()
    assert sentence.startswith("hvdrun: -mca has no effect: there is no MPI underneath")


def test_more_workers_than_slots_run_when_that_is_allowed(hvdrun: Launcher) -> None:
    line = "-np 3 -H localhost:1 -map-by slot --tag-output --allow-run-as-root {} python train.py"
    refused = hvdrun(*shlex.split(line.format("")))
    assert refused.returncode == 2
    told, said = run(hvdrun, line.format("--oversubscribe"))
    assert told == [[str(rank), str(rank), "localhost", None, None, str(hvdrun.directory), []] for rank in range(3)]
    assert said == ""


def test_a_forwarded_secret_is_shown_nowhere(hvdrun: Launcher) -> None:
    line = "-np 1 -v -x 'HID*' -x API_KEY=hunter2-2 python train.py"
    told, said = run(hvdrun, line, HIDDEN="hunter2-1")
    assert told[0][4] == "hunter2-1"
    planned = hvdrun("--dry-run", *shlex.split(line), environment={"HIDDEN": "hunter2-1"})
    assert "hunter2-2" not in said + planned.stdout + planned.stderr
    assert "API_KEY='***'" in planned.stdout
