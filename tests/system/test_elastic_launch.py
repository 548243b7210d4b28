"""Elastic jobs of plain programs: hosts that come and go, workers that are started again, and how such jobs end."""

import signal
import time

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import kill, read_state
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

SCRIPT = ("--host-discovery-script", "cat hosts")
SHOW = "echo $HOROVOD_RANK of $HOROVOD_SIZE on $HOROVOD_HOSTNAME elastic $HOROVOD_ELASTIC world $WORLD_SIZE"
# Runs until the file `go` exists.
STAY = "while [ ! -e go ]; do sleep 0.05; done"
# The first worker of slot 1 has a fate of its own, the second one lets all of them end.
FIRST = (
    'case "$HVD_SLOT.$HVD_INCARNATION" in localhost:1.1) {fate};; localhost:1.2) touch go;; esac; '
    "while [ ! -e go ]; do sleep 0.05; done"
)
STAYS = f"""{WAIT_FOR}
print(os.getpid(), "up", flush=True)
wait_for("go")
"""
ALONE = (
    "hvdrun: it starts alone, since no worker has called hvd.init() or opened the port of torch.distributed: with "
    "--max-restarts all workers are started again together."
)
REPLACED = ["hvdrun: a new worker is started in slot localhost:1.", ALONE]


def name_hosts(hvdrun: Launcher, *lines: str) -> None:
    """What the script answers from now on; never half of it."""
    path = hvdrun.write("next", "".join(f"{line}\n" for line in lines))
    path.replace(hvdrun.directory / "hosts")


def test_an_elastic_job_starts_on_a_fixed_list_of_hosts_and_on_this_machine(hvdrun: Launcher) -> None:
    alone = hvdrun("-np", "2", "--min-np", "1", "sh", "-c", SHOW)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert sorted(alone.stdout.splitlines()) == [
        "[0] 0 of 2 on localhost elastic 1 world 2",
        "[1] 1 of 2 on localhost elastic 1 world 2",
    ]
    listed = hvdrun("-np", "1", "--min-np", "1", "--max-np", "2", "-H", "localhost:1,127.0.0.1:4", "sh", "-c", SHOW)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert sorted(listed.stdout.splitlines()) == [
        "[0@localhost] 0 of 2 on localhost elastic 1 world 2",
        "[1@127.0.0.1] 1 of 2 on 127.0.0.1 elastic 1 world 2",
    ]


def test_a_worker_that_fails_before_all_have_joined_is_started_again(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "--min-np", "1", "sh", "-c", FIRST.format(fate="exit 3"))
    assert finished.returncode == 0
    assert finished.stderr.splitlines() == ["hvdrun: rank 1 (localhost:1) was lost: exit code 3.", *REPLACED]


def test_the_job_waits_for_enough_slots_and_uses_all_there_are(hvdrun: Launcher) -> None:
    name_hosts(hvdrun, "localhost:1")
    running = hvdrun.start("-np", "2", "--max-np", "3", *SCRIPT, "sh", "-c", SHOW)
    running.stderr.wait_for(r"^hvdrun: the hosts offer 1 of the 2 slots .*--elastic-timeout", 60)
    name_hosts(hvdrun, "localhost:1", "127.0.0.1:4")
    finished = running.wait()
    assert finished.returncode == 0
    assert "hvdrun: the script names new hosts: 127.0.0.1 (4 slots).\n" in finished.stderr
    assert len(finished.stdout.splitlines()) == 3


def test_a_host_that_comes_later_gets_an_agent_and_workers_and_one_that_goes_is_left(hvdrun: Launcher) -> None:
    name_hosts(hvdrun, "localhost:1")
    running = hvdrun.start("-np", "1", *SCRIPT, "sh", "-c", f"echo up; {STAY}")
    running.stdout.wait_for(r"^\[0@localhost\] up$", 60)
    name_hosts(hvdrun, "localhost:1", "127.0.0.1")
    running.stdout.wait_for(r"^\[1@127.0.0.1\] up$", 60)
    wait_until(lambda: len(hvdrun.processes("-m hvdrun.")) == 5)  # each with its watchdog, and hvdrun's own
    name_hosts(hvdrun, "localhost:1")
    running.stderr.wait_for("^hvdrun: the script no longer names these hosts: 127.0.0.1.$", 60)
    wait_until(lambda: len(hvdrun.processes("-m hvdrun.")) == 3)
    hvdrun.write("go", "")
    assert running.wait().returncode == 0


@pytest.mark.parametrize("script", rest_nightly(["sleep 600 & wait", "sleep 600"]))
def test_ctrl_c_while_hosts_are_waited_for_ends_the_script_as_well(hvdrun: Launcher, script: str) -> None:
    running = hvdrun.start("-np", "1", "--host-discovery-script", script, "true")
    wait_until(lambda: any(process.command == "sleep 600" for process in hvdrun.processes()))
    running.send_to_terminal(signal.SIGINT)
    finished = running.wait()
    assert (finished.returncode, finished.stdout) == (-signal.SIGINT, "")


def test_kill_9_of_hvdrun_ends_a_script_that_runs_wherever_its_parts_went(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "1", "--host-discovery-script", "setsid sleep 600 & sleep 601; sleep 602", "true")
    wait_until(lambda: {"sleep 600", "sleep 601"} <= {process.command for process in hvdrun.processes()})
    running.send(signal.SIGKILL)
    assert running.wait().returncode == -signal.SIGKILL
    assert not hvdrun.watch.settle()


def test_a_dry_run_asks_the_script_once_and_starts_nothing(hvdrun: Launcher) -> None:
    name_hosts(hvdrun, "localhost:1", "127.0.0.1:2")
    finished = hvdrun("-np", "2", *SCRIPT, "--dry-run", "sh", "-c", "touch started")
    assert finished.returncode == 0
    assert "\n  hosts      from 'cat hosts', as it prints them now\n" in finished.stdout
    assert "\n2     1           0           127.0.0.1  1\n" in finished.stdout
    too_few = hvdrun("-np", "4", *SCRIPT, "--dry-run", "true")
    assert (too_few.returncode, too_few.stdout) == (125, "")
    assert "3 of the 4 slots" in too_few.stderr
    assert not (hvdrun.directory / "started").exists()


def test_a_worker_that_is_stopped_for_the_lease_is_ended_and_started_again_immediately(hvdrun: Launcher) -> None:
    options = ("--min-np", "1", "--lease", "3s", "--blacklist-cooldown-range", "600", "600")  # its slot stays open
    running = hvdrun.start("-np", "2", *options, "sh", "-c", FIRST.format(fate="kill -STOP $$"))
    finished = running.wait()
    assert finished.returncode == 0
    reported = "the worker localhost:1 was stopped for longer than the lease of 3 s (--lease)"
    assert finished.stderr.splitlines() == [f"hvdrun: rank 1 (localhost:1) was lost: {reported}.", *REPLACED]


@pytest.mark.nightly
def test_a_static_job_s_workers_may_be_stopped(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "1", "--lease", "1s", "sh", "-c", "echo $$ > pid; kill -STOP $$; echo woke")
    path = hvdrun.directory / "pid"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n") and read_state(int(path.read_text())) == "T")
    time.sleep(2.0)  # twice the lease, in which nothing may happen
    kill(int(path.read_text()), signal.SIGCONT)
    assert running.wait().stdout == "[0] woke\n"


@pytest.mark.parametrize(
    ("number", "how"),
    rest_nightly(
        [
            (signal.SIGKILL, r"host 127.0.0.1 was lost: its agent ended with SIGKILL \(signal 9\)"),
            (signal.SIGSTOP, r"host 127.0.0.1 was lost: its agent was silent for 1 s \(--lease\)"),
        ]
    ),
)
def test_a_host_whose_agent_is_lost_comes_back_with_another(hvdrun: Launcher, number: signal.Signals, how: str) -> None:
    options = ("--min-np", "1", "--lease", "1s", "--blacklist-cooldown-range", "1", "1")
    running = hvdrun.start(
        "-np", "2", *options, "-H", "localhost:1,127.0.0.1:1", "sh", "-c", f"echo $$ $PPID up; {STAY}"
    )
    running.stdout.wait_for(r"^\[0@localhost\] .* up$", 60)
    worker, agent = map(int, running.stdout.wait_for(r"^\[1@127.0.0.1\] (\d+) (\d+) up$", 60).groups())
    wait_until(lambda: len([*hvdrun.watch.temporary.glob("hvdrun-*/agent.sock")]) == 2)
    time.sleep(1.0)  # for its first report, which nothing shows: its lease begins with that
    kill(agent, number)
    running.stderr.wait_for(f"^hvdrun: {how}.$", 60)
    running.stderr.wait_for("^hvdrun: a new worker is started in slot 127.0.0.1:0.$", 60)
    running.stdout.wait_for(rf"^\[1@127.0.0.1\] (?!{worker} )\d+ (?!{agent} )\d+ up$", 60)
    wait_until(lambda: not {worker, agent} & {process.pid for process in hvdrun.processes()})
    hvdrun.write("go", "")
    assert running.wait().returncode == 0


def test_a_forkserver_that_is_killed_costs_no_worker(hvdrun: Launcher) -> None:
    hvdrun.write("stay.py", STAYS)
    running = hvdrun.start("-v", "-np", "2", "--min-np", "1", "python", "stay.py", forks=True)
    running.stdout.wait_for(r"^\[0\] \d+ up$", 60)
    worker = int(running.stdout.wait_for(r"^\[1\] (\d+) up$", 60)[1])
    (forkserver,) = hvdrun.processes("-m worker_runtime.startup.forkserver")
    kill(forkserver.pid)
    wait_until(lambda: not hvdrun.processes("-m worker_runtime.startup.forkserver"))
    kill(worker)
    running.stderr.wait_for(r"^hvdrun: localhost:1#2 is process \d+, forked$", 60)
    wait_until(lambda: running.stdout.text().count(" up\n") == 3)
    hvdrun.write("go", "")
    assert running.wait().returncode == 0
