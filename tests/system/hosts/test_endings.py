"""How a job on several hosts ends: the first failure anywhere decides, and an interrupt need not wait.

No test measures how long an end took: a job that waited for a wrong thing would exceed the time limit of the test.
"""

import signal
import time

import pytest

from tests.system.hosts.cluster import WAYS, Cluster
from tests.system.launcher import Running
from tests.waiting import LIMIT_SECONDS

JOB = ("-np", "3", "-H", "host1:2,host2:1", "--lease", "600s")
WAITS = ("sh", "-c", "echo alive; sleep 600; true")
STOPPED = pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, -signal.SIGINT, "stopping 3 workers; Ctrl-C again stops them immediately."),
        pytest.param(signal.SIGTERM, 143, "received SIGTERM.", marks=pytest.mark.nightly),
    ],
    ids=["SIGINT", "SIGTERM"],
)


def await_all(running: Running) -> None:
    """Return when every rank has said that it is alive."""
    for mark in ("0@host1", "1@host1", "2@host2"):
        running.stdout.wait_for(rf"^\[{mark}\] alive$", LIMIT_SECONDS)


@WAYS
def test_the_first_failure_on_a_remote_host_decides_and_is_explained(pair: Cluster, way: tuple[str, ...]) -> None:
    script = 'if [ "$HOROVOD_RANK" = 2 ]; then echo out of data >&2; exit 7; fi; sleep 600; true'
    finished = pair(*JOB, *way, "sh", "-c", script)
    assert finished.returncode == 7
    page = finished.stderr.splitlines()
    assert "[2@host2] out of data" in page
    assert page[-4].startswith("hvdrun: rank 2 on host2 (slot 0) failed first after ")
    assert page[-4].endswith(" s: exit code 7")
    assert page[-3:] == ["  It wrote last:", "  | out of data", "  hvdrun then stopped ranks 0-1."]


@STOPPED
@WAYS
def test_a_signal_ends_all_workers(
    pair: Cluster, number: signal.Signals, code: int, said: str, way: tuple[str, ...]
) -> None:
    running = pair.start(*JOB, *way, *WAITS)
    await_all(running)
    running.send_to_terminal(number)
    finished = running.wait()
    assert finished.returncode == code
    assert finished.stderr == f"hvdrun: {said}\n"


@STOPPED
def test_a_signal_ends_a_login_that_is_not_answered(
    pair: Cluster, number: signal.Signals, code: int, said: str
) -> None:
    pair.configure_ssh("Host *\n  ConnectTimeout 600\n")
    pair["host2"].network.cut()
    running = pair.start(*JOB, "-v", *WAITS)
    running.stderr.wait_for("^hvdrun: launch host2:0: placed$", 60)
    running.send_to_terminal(number)
    finished = running.wait()
    assert (finished.returncode, finished.stdout) == (code, "")
    assert f"hvdrun: {said}" in finished.stderr.splitlines()


def test_repeated_ctrl_c_waits_for_no_host_not_even_for_one_that_is_cut_off(pair: Cluster) -> None:
    running = pair.start(*JOB, *WAITS)
    await_all(running)
    pair["host2"].network.cut()
    while running.is_running:
        running.send_to_terminal(signal.SIGINT)
        time.sleep(0.3)  # a person's fingers; no event shows that a signal has been taken
    assert running.wait().returncode in {130, -signal.SIGINT}  # the last came when hvdrun no longer handled it
    pair.end_sessions()
