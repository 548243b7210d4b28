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


def test_the_line_for_one_machine_runs_as_it_is(hvdrun: Launcher) -> None:
    told, said = run(hvdrun, "-np 4 -H localhost:4 -bind-to none -map-by slot python train.py")
    assert told == [[str(rank), str(rank), "localhost", None, None, str(hvdrun.directory), []] for rank in range(4)]
    assert said == ""


def test_the_words_of_the_line_for_several_hosts_do_what_they_say(hvdrun: Launcher) -> None:
    """The hosts are names of this machine; the line with real ones runs in the lab."""
    line = (
        "-np 2 -H localhost:1,127.0.0.1:1 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 "
        "-mca btl ^openib python train.py --lr 1"
    )
    told, said = run(hvdrun, line)
    assert [(rank, host, debug, words) for rank, _, host, debug, _, _, words in told] == [
        ("0", "localhost", "INFO", ["--lr", "1"]),
        ("1", "127.0.0.1", "INFO", ["--lr", "1"]),
    ]
    (sentence,) = said.splitlines()
    assert sentence.startswith("hvdrun: -mca has no effect: there is no MPI underneath")


def test_workers_are_dealt_out_to_the_hosts_on_request(hvdrun: Launcher) -> None:
    told, _ = run(hvdrun, "-n 2 -H localhost:2,127.0.0.1:2 -map-by node python train.py")
    assert [worker[:3] for worker in told] == [["0", "0", "localhost"], ["1", "0", "127.0.0.1"]]


def test_more_workers_than_slots_run_when_that_is_allowed(hvdrun: Launcher) -> None:
    refused = hvdrun(*shlex.split("-np 3 -H localhost:1 python -c 1"))
    assert refused.returncode == 2
    told, _ = run(hvdrun, "-np 3 -H localhost:1 --oversubscribe --tag-output --allow-run-as-root python train.py")
    assert [worker[0] for worker in told] == ["0", "1", "2"]


def test_the_workers_run_in_the_directory_that_is_given(hvdrun: Launcher) -> None:
    (hvdrun.directory / "runs").mkdir()
    told, _ = run(hvdrun, f"-np 1 -wdir runs python {hvdrun.directory}/train.py")
    assert told[0][5] == str(hvdrun.directory / "runs")


def test_a_forwarded_secret_is_shown_nowhere(hvdrun: Launcher) -> None:
    line = "-np 1 -v -x 'HID*' -x API_KEY=hunter2-2 python train.py"
    told, said = run(hvdrun, line, HIDDEN="hunter2-1")
    assert told[0][4] == "hunter2-1"
    planned = hvdrun("--dry-run", *shlex.split(line), environment={"HIDDEN": "hunter2-1"})
    assert "hunter2-2" not in said + planned.stdout + planned.stderr
    assert "API_KEY='***'" in planned.stdout
