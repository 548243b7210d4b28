"""How a job on several hosts ends: the first failure anywhere decides, and whoever interrupts it need not wait."""

import signal
import time

import pytest

from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Running

JOB = ("-np", "3", "-H", "host1:2,host2:1")
HURRY_SECONDS = 3.0  # what "at once" may take on a busy machine; what is not waited for is much longer
WAITS = ("sh", "-c", "echo alive; sleep 600; true")
STOPPED = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)


def wait_for_all(running: Running) -> None:
    """Return when every rank has said that it is alive."""
    for mark in ("0@host1", "1@host1", "2@host2"):
        running.stdout.wait_for(rf"^\[{mark}\] alive$", 30)


def test_the_first_failure_on_a_remote_host_decides_and_is_explained(pair: Cluster) -> None:
    script = 'if [ "$HOROVOD_RANK" = 2 ]; then echo out of data >&2; exit 7; fi; sleep 600; true'
    finished = pair(*JOB, "sh", "-c", script)
    assert finished.returncode == 7
    page = finished.stderr.splitlines()
    assert "[2@host2] out of data" in page
    assert page[-4].startswith("hvdrun: rank 2 on host2 (slot 0) failed first after ")
    assert page[-4].endswith(" s: exit code 7")
    assert page[-3:] == ["  It wrote last:", "  | out of data", "  Because of it ranks 0-1 were ended."]


def test_a_worker_on_a_remote_host_that_is_killed_by_a_signal(pair: Cluster) -> None:
    script = 'if [ "$HOROVOD_RANK" = 2 ]; then kill -SEGV $$; fi; sleep 600; true'
    finished = pair(*JOB, "sh", "-c", script)
    assert finished.returncode == 128 + signal.SIGSEGV
    assert "hvdrun: rank 2 on host2 (slot 0) failed first" in finished.stderr
    assert "killed by SIGSEGV (signal 11)" in finished.stderr


@STOPPED
def test_a_signal_ends_all_workers_at_once(pair: Cluster, number: signal.Signals, code: int) -> None:
    running = pair.start(*JOB, *WAITS)
    wait_for_all(running)
    began = time.monotonic()
    running.send_to_terminal(number)
    finished = running.wait(20)
    assert time.monotonic() - began < HURRY_SECONDS
    assert finished.returncode == code
    assert finished.stderr == f"hvdrun: {number.name} came to hvdrun.\n"


def test_workers_may_clean_up_unless_a_second_ctrl_c_comes(pair: Cluster) -> None:
    script = "trap 'echo not yet' TERM; echo alive; while :; do sleep 0.05; done"
    running = pair.start(*JOB, "--grace", "300s", "sh", "-c", script)
    wait_for_all(running)
    running.send_to_terminal(signal.SIGINT)
    for mark in ("0@host1", "2@host2"):
        running.stdout.wait_for(rf"^\[{mark}\] not yet$", 20)
    began = time.monotonic()
    running.send_to_terminal(signal.SIGINT)
    assert running.wait(20).returncode == 130
    assert time.monotonic() - began < HURRY_SECONDS


@STOPPED
def test_a_signal_while_a_host_does_not_answer_the_login(pair: Cluster, number: signal.Signals, code: int) -> None:
    pair["host2"].network.cut()
    running = pair.start(*JOB, "-v", *WAITS)
    running.stderr.wait_for("^hvdrun: launch host2:0: placed$", 20)
    began = time.monotonic()
    running.send_to_terminal(number)
    finished = running.wait(20)
    assert time.monotonic() - began < HURRY_SECONDS
    assert (finished.returncode, finished.stdout) == (code, "")
    assert finished.stderr.splitlines()[-1] == f"hvdrun: {number.name} came to hvdrun."


def test_a_third_ctrl_c_waits_for_nobody_not_even_for_a_host_that_is_cut_off(pair: Cluster) -> None:
    running = pair.start(*JOB, "--lease", "3s", *WAITS)
    wait_for_all(running)
    pair["host2"].network.cut()
    began = time.monotonic()
    for _ in range(3):
        running.send_to_terminal(signal.SIGINT)
        time.sleep(0.3)  # a person's fingers; nothing tells that a signal has been taken
    assert running.wait(20).returncode == 130
    assert time.monotonic() - began < HURRY_SECONDS
    deadline = time.monotonic() + 20
    while not all("sshd" in trace for trace in pair.find_left()):  # until the lease has run out
        assert time.monotonic() < deadline, pair.find_left()
        time.sleep(0.05)
    pair["host2"].sshd.kill_sessions()  # it knows nothing of the end of a connection that is cut
