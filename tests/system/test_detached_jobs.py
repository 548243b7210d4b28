"""A job that outlives its terminal: its start, its end, and its exit code as `hvdrun wait` tells it later."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.detached import ask, detach, find_job, kill_launcher
from tests.system.launcher import LIMIT_SECONDS, Finished, Launcher
from tests.system.roles import kill
from tests.system.scripts import WAIT_FOR
from tests.waiting import wait_until

PLAIN = """
import os, sys, time
if sys.argv[1] == "show":
    print(os.getcwd(), os.environ["A_VALUE"], os.umask(0), sys.stdin.read() == "", flush=True)
elif sys.argv[1] == "wait":
    open(f"running.{os.environ['HVD_SLOT']}", "w")
    time.sleep(600)
elif sys.argv[1] == "go":
    while not os.path.exists("go"):
        time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""
NO_JOURNAL = """
from rendezvous.journal import file_systems
file_systems.find_shared_kind = lambda _: "NFS"
"""
SAVES = """
import os, signal, time
slot = os.environ["HVD_SLOT"]

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    print("saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, save)
open(f"running.{slot}", "w")
time.sleep(600)
"""
# A worker fails when both have begun.
FAILS = f"""{WAIT_FOR}
import worker_runtime
print("begun", flush=True)
slot = int(os.environ["HVD_SLOT"].rpartition(":")[2])
open(f"{{sys.argv[1]}}.{{slot}}", "w")
wait_for(f"{{sys.argv[1]}}.{{1 - slot}}")
sys.exit(3)
"""
TALKS = """
import os, sys, time
print(0, flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
for number in range(1, int(sys.argv[1])):
    print(number)
sys.stdout.flush()
print("over", file=sys.stderr)
sys.exit(7)
"""
JOINS = """
import sys, time
import worker_runtime.torch as hvd
hvd.init()
open(f"joined.{hvd.rank()}", "w")
time.sleep(600)
"""


def test_wait_ends_with_the_exit_code_of_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    job = detach(hvdrun, "-np", "2", "python", "job.py", "go", "7")
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job) == Finished(7, "", "")
    assert f"{job}  exit 7" in ask(hvdrun, "ps").stdout


def test_the_job_has_what_its_caller_has(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    words = hvdrun.command("--detach", "-np", "1", "python", "job.py", "show", "0")
    started = hvdrun.start_words(["sh", "-c", 'umask 027; exec "$@"', "sh", *words], {"A_VALUE": "b"}).wait()
    assert ask(hvdrun, "wait", started.stdout.strip()).returncode == 0
    (log,) = hvdrun.state.glob("hvdrun/*/log.1")
    assert log.read_text().rstrip().endswith(f" stdout F [0] {hvdrun.directory} b {0o027} True")


def test_hvdrun_returns_when_all_workers_have_joined(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", JOINS)
    job = detach(hvdrun, "-np", "2", "python", "job.py")
    wait_until(lambda: len(list(hvdrun.directory.glob("joined.*"))) == 2, "both to join")
    assert ask(hvdrun, "stop", job).returncode == 0
    assert ask(hvdrun, "wait", job).returncode == 128 + signal.SIGTERM


def test_a_job_that_runs_is_found_from_another_state_folder(hvdrun: Launcher, tmp_path: Path) -> None:
    hvdrun.write("job.py", TALKS)
    job = detach(hvdrun, "-np", "1", "python", "job.py", "3")
    words = [sys.executable, "-m", "hvdrun", "attach", job]
    attached = hvdrun.start_words(words, {"XDG_STATE_HOME": str(tmp_path)})
    attached.stdout.wait_for(r"\[0\] 0", 60)
    (hvdrun.directory / "go").touch()
    assert attached.wait().returncode == 7


def test_the_job_continues_without_its_terminal_and_stops_on_request(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    words = hvdrun.command("--detach", "-np", "2", "python", "job.py", "wait", "0")
    screen = hvdrun.directory / "screen"
    # The terminal ends with its shell.
    subprocess.run(
        ["script", "-qec", " ".join(words), str(screen)],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    shown = screen.read_text()
    found = re.search(
        r"^hvdrun: the job goes on: hvdrun attach (\w+) \| logs -f \1 \| stop \1\n\1$", shown, re.MULTILINE
    )
    assert found, shown
    wait_until(lambda: len(list(hvdrun.directory.glob("running.*"))) == 2, "both to run")
    assert f"{found[1]}  running" in ask(hvdrun, "ps").stdout
    stopped = ask(hvdrun, "stop", found[1])
    assert (stopped.returncode, stopped.stdout) == (0, "")
    assert ask(hvdrun, "wait", found[1]).returncode == 128 + signal.SIGTERM


def test_a_job_that_cannot_start_ends_as_without_detach(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", FAILS)
    words = ("-np", "2", "python", "job.py")
    attached = hvdrun(*words, "attached", forks=False)
    detached = hvdrun("--detach", *words, "detached", forks=False)
    assert detached.returncode == attached.returncode == 3
    assert sorted(detached.stdout.splitlines()) == ["[0] begun", "[1] begun"]
    assert re.search("hvdrun: rank . on localhost .* failed first after .*: exit code 3", detached.stderr)
    missing = hvdrun("--detach", "-np", "2", "no-such-program")
    assert (missing.returncode, missing.stdout) == (127, "")
    assert "hvdrun: the command 'no-such-program' was not found" in missing.stderr
    assert list((hvdrun.state / "hvdrun").iterdir()) == []


def test_a_killed_launcher_has_an_unknown_end(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    limits = ("--server-timeout", "5s", "--lease", "5s")  # beside other jobs an agent may be silent for seconds
    job = detach(hvdrun, "-np", "2", *limits, "python", "job.py", "go", "0")
    kill_launcher(hvdrun)
    hvdrun.write("go", "")
    for name in ("wait", "stop"):
        ended = ask(hvdrun, name, job)
        assert ended.returncode == 69, ended
        assert f"hvdrun: the launcher of the job {job} was killed" in ended.stderr
    assert f"{job}  lost" in ask(hvdrun, "ps").stdout


@pytest.mark.parametrize("has_journal", [True, False])
def test_workers_have_their_grace_when_all_processes_are_asked_to_end(hvdrun: Launcher, has_journal: bool) -> None:
    """As at the shutdown of the machine, or the end of a unit of systemd."""
    hvdrun.write("save.py", SAVES)
    hvdrun.write("sitecustomize.py", "" if has_journal else NO_JOURNAL)
    words = ("-np", "2", "--grace", "60s", "python", "save.py")
    started = hvdrun("--detach", *words, environment={"PYTHONPATH": str(hvdrun.directory)})
    assert ("the job ends with its server" in started.stderr) is not has_journal
    job = started.stdout.strip()
    wait_until(lambda: len(list(hvdrun.directory.glob("running.*"))) == 2, "both to run")
    processes = hvdrun.processes()
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):  # all are asked before one of them answers
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended after it was asked
                kill(process.pid, number)
    assert ask(hvdrun, "wait", job).returncode == 128 + signal.SIGTERM
    assert ask(hvdrun, "logs", job).stdout.count("saved") == 2


def test_ctrl_c_during_the_start_ends_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", 'import time, worker_runtime\nopen("begun", "w")\ntime.sleep(600)\n')
    running = hvdrun.start("--detach", "-np", "1", "--grace", "1s", "python", "job.py", forks=False)
    wait_until((hvdrun.directory / "begun").exists, "the worker to begin")
    running.send_to_terminal(signal.SIGINT)
    ended = running.wait()
    assert ended.returncode == 128 + signal.SIGINT
    assert "hvdrun: stopping 1 worker; Ctrl-C again stops it immediately." in ended.stderr


@pytest.mark.parametrize(
    ("variables", "words", "sentence"),
    [
        ({"PBS_JOBID": "1"}, [], "--detach is refused: PBS keeps the job: submit a batch script (qsub)"),
        ({"HVD_JOB": "1"}, [], "--detach is refused: hvdrun runs in a worker of another job"),
        ({}, ["--stdin", "0"], "--stdin reads the standard input of hvdrun, which ends with the terminal"),
    ],
)
def test_a_job_that_cannot_be_detached_is_refused(
    hvdrun: Launcher, variables: dict[str, str], words: list[str], sentence: str
) -> None:
    refused = hvdrun("--detach", *words, "-np", "1", "true", environment=variables)
    assert refused.returncode in {2, 125}
    assert sentence in refused.stderr


def test_a_folder_that_others_may_read_is_refused(hvdrun: Launcher) -> None:
    (hvdrun.state / "hvdrun").mkdir(parents=True)
    (hvdrun.state / "hvdrun").chmod(0o755)
    refused = hvdrun("--detach", "-np", "1", "true")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "of the detached jobs is open to other users (chmod 700)" in refused.stderr


def test_an_attached_job_is_listed_and_stopped(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    running = hvdrun.start("-np", "1", "python", "job.py", "wait", "0", hvdrun.watch.mark)
    wait_until(lambda: any(hvdrun.directory.glob("running.*")), "the worker to run")
    listed = [line for line in ask(hvdrun, "ps").stdout.splitlines() if line.endswith(hvdrun.watch.mark)]
    assert [line.split()[1] for line in listed] == ["attached"]
    assert ask(hvdrun, "stop", listed[0].split()[0]).returncode == 0
    assert running.wait().returncode == 128 + signal.SIGTERM
    assert not hvdrun.state.exists()


def test_an_attached_job_that_is_killed_leaves_nothing(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", PLAIN)
    running = hvdrun.start("-np", "1", "python", "job.py", "wait", "0", hvdrun.watch.mark)
    wait_until(lambda: any(hvdrun.directory.glob("running.*")), "the worker to run")
    for process in hvdrun.processes():
        with contextlib.suppress(ProcessLookupError):
            kill(process.pid)
    running.wait()
    assert hvdrun.watch.mark not in ask(hvdrun, "ps").stdout
    assert not hvdrun.state.exists()
    shutil.rmtree(hvdrun.watch.temporary)  # of the agent and its watchdog, which were killed together
    hvdrun.watch.temporary.mkdir()


def test_attach_continues_as_long_as_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", TALKS)
    job = detach(hvdrun, "-np", "1", "python", "job.py", "3")
    attached = hvdrun.start_words([sys.executable, "-m", "hvdrun", "attach", job])
    attached.stdout.wait_for(r"\[0\] 0", 60)
    (hvdrun.directory / "go").touch()
    ended = attached.wait()
    assert (ended.returncode, ended.stdout) == (7, "[0] 0\n[0] 1\n[0] 2\n")
    assert ended.stderr.startswith("[0] over\nhvdrun: rank 0 on localhost (slot 0) failed first")
    assert ask(hvdrun, "logs", "--rank", "0", job) == Finished(0, ended.stdout, "[0] over\n")


def test_a_reader_of_logs_that_goes_ends_it(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", TALKS)
    job = detach(hvdrun, "-np", "1", "python", "job.py", "20000")  # one that fails at once may not have started
    (hvdrun.directory / "go").touch()
    read = hvdrun.start_words(
        [
            "bash",
            "-c",
            '"$@" | head -1; exit ${PIPESTATUS[0]}',
            "bash",
            sys.executable,
            "-m",
            "hvdrun",
            "logs",
            "-f",
            job,
        ]
    ).wait()
    assert (read.returncode, read.stdout, read.stderr) == (141, "[0] 0\n", "")
    assert ask(hvdrun, "wait", job).returncode == 7


@pytest.mark.nightly
def test_logs_follow_over_all_files_of_the_log(hvdrun: Launcher) -> None:
    hvdrun.write("job.py", TALKS)
    job = detach(hvdrun, "-np", "1", "python", "job.py", "700000")
    following = hvdrun.start_words([sys.executable, "-m", "hvdrun", "logs", "-f", job])
    following.stdout.wait_for(r"\[0\] 0", 60)
    (hvdrun.directory / "go").touch()
    ended = following.wait(200)
    assert ended.stdout == "".join(f"[0] {number}\n" for number in range(700000))
    assert len(list(hvdrun.state.glob("hvdrun/*/log.*"))) > 1


def test_a_job_whose_name_cannot_be_written_is_reported_to_continue(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", PLAIN)
    with Path("/dev/full").open("wb") as full:
        started = subprocess.run(
            hvdrun.command("--detach", "-np", "1", "python", "train.py", "go", "0"),
            cwd=hvdrun.directory,
            env=hvdrun.environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    job = find_job(hvdrun)
    assert (started.returncode, started.stderr.decode().splitlines()) == (
        74,
        [
            f"hvdrun: the job goes on: hvdrun attach {job} | logs -f {job} | stop {job}",
            "hvdrun: the standard output cannot be written: No space left on device; see what it is redirected to.",
        ],
    )
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job).returncode == 0
