"""kill -9 of whatever belongs to a job: what hvdrun's exit code and its user learn, and that nothing is left.

That no process, socket or file is left is checked after each test, by the fixture.
"""

import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import count_read, find_agent, find_sequencers, find_watchdog, has_looked, kill
from tests.system.scripts import JOIN, WAIT_FOR
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

# Every worker has a child, one that has left the session and does not end when asked to, one that has shed its
# environment as well, and a daemon that was never executed.
BEGINS_FAMILY = f"""{WAIT_FOR}
subprocess.Popen(["sh", "-c", "echo child $$ lives; sleep 600; true"])
subprocess.Popen(["sh", "-c", "trap '' TERM; echo stray $$ lives; sleep 600; true"], start_new_session=True)
subprocess.Popen(["/bin/sh", "-c", "echo bare $$ lives; sleep 600; true"], start_new_session=True, env={{}})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon %d lives\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
"""
LIVES = """
os.write(1, b"worker %d lives\\n" % os.getpid())  # print would write its line in pieces, between the others
wait_for("go")
"""
FAMILY = BEGINS_FAMILY + LIVES
# A process that has used gRPC may hang when it forks, so the worker joins after its forks.
JOINED_FAMILY = f"{BEGINS_FAMILY}{JOIN}join(){LIVES}"
# The daemon is known by nothing but its ancestors, which it has left.
HIDING = f"""{WAIT_FOR}
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sh", ["sh", "-c", "echo hidden $$ lives; sleep 600; true"], {{}})
    os._exit(0)
os.wait()
os.write(1, b"worker %d lives\\n" % os.getpid())
time.sleep(600)
"""
ONE_JOINS = f"""{JOIN}
os.write(1, b"worker %d lives\\n" % os.getpid())
if os.environ["HOROVOD_RANK"] == "1":
    time.sleep(600)
join()
"""
HAVE_JOINED = f"""{JOIN}
join()
os.write(1, b"worker %d lives\\n" % os.getpid())
time.sleep(600)
"""
# A lock that a spawned child shares: Python's own tracker of semaphores removes its file from /dev/shm.
LOCKS = """
import multiprocessing, os, time

def hold(lock):
    time.sleep(600)

if __name__ == "__main__":
    before = set(os.listdir("/dev/shm"))
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    assert any(name.startswith("sem.") for name in set(os.listdir("/dev/shm")) - before)
    context.Process(target=hold, args=(lock,)).start()
    os.write(1, b"worker %d lives\\n" % os.getpid())
    time.sleep(600)
"""
# One worker waits for the other in the kernel, without an end.
BLOCKS = """
import os, time
import torch
import worker_runtime.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(1))
os.write(1, b"worker %d lives\\n" % os.getpid())
if hvd.rank():
    time.sleep(600)
hvd.allreduce(torch.ones(1))
"""
FAMILY_MEMBERS = ("worker", "child", "stray", "bare", "daemon")
JOBS = {
    "their families live": (FAMILY, FAMILY_MEMBERS),
    "their daemons hide": (HIDING, ("worker", "hidden")),
    "one waits for the other to join": (ONE_JOINS, ("worker",)),
    "they have joined": (HAVE_JOINED, ("worker",)),
    "they have joined, and their families live": (JOINED_FAMILY, FAMILY_MEMBERS),
    "they hold semaphores": (LOCKS, ("worker",)),
    "one is blocked in a collective": (BLOCKS, ("worker",)),
}
STARTS = 6
START_SECONDS = 0.4  # about what it takes until the workers run


@dataclass(frozen=True, slots=True)
class Job:
    """A job of two workers that have come where the test wants them.

    agent: its pid.
    pids: by member of a worker's family and rank.
    """

    hvdrun: Launcher
    running: Running
    agent: int
    pids: dict[tuple[str, int], int]


def start(
    hvdrun: Launcher,
    doing: str,
    *options: str,
    forks: bool = False,
    command: tuple[str, ...] = ("python", "train.py"),
) -> Job:
    """Start a job of two, and wait until all members of its workers' families live."""
    script, members = JOBS[doing]
    hvdrun.write("train.py", script)
    running = hvdrun.start("-np", "2", *options, *command, forks=forks or None)
    pids = {
        (member, rank): int(running.stdout.wait_for(rf"^\[{rank}\] {member} (\d+) lives$", 60)[1])
        for rank in range(2)
        for member in members
    }
    agent = find_agent(hvdrun)
    assert agent is not None
    return Job(hvdrun, running, agent, pids)


def replace_watchdog(job: Job) -> int:
    """Kill the watchdog, and wait until the next one has looked at what is below the agent; the pid of the former."""
    former = kill(find_watchdog(job.hvdrun))
    wait_until(lambda: find_watchdog(job.hvdrun) not in {None, former} and has_looked(find_watchdog(job.hvdrun)))
    return former


def await_snapshot(job: Job) -> None:
    """Wait until the watchdog has seen the workers' families: what it reads of each in /proc, it has read thrice."""
    watchdog = find_watchdog(job.hvdrun)
    assert watchdog is not None
    once = sum(len(Path(f"/proc/{pid}/stat").read_bytes()) for pid in job.pids.values())
    before = count_read(watchdog)
    wait_until(lambda: count_read(watchdog) > before + 3 * once)


VICTIMS: dict[str, Callable[[Job, signal.Signals], int]] = {
    "hvdrun": lambda job, number: kill(job.running.pid, number),
    "agent": lambda job, number: kill(job.agent, number),
    "watchdog": lambda job, _: replace_watchdog(job),
    "worker": lambda job, number: kill(job.pids["worker", 1], number),
    "sequencer": lambda job, _: kill(find_sequencers(job.hvdrun)[0], signal.SIGSTOP),
}
KILLED = -signal.SIGKILL
LOST = r"hvdrun: host localhost was lost: its agent ended with SIGKILL \(signal 9\)\.\n"
SIGNALLED = r"hvdrun: the agent on host localhost received SIGTERM\.\n"
SILENT = r"hvdrun: host localhost was lost: its agent was silent for 2 s \(--lease\)\.\n"
FAILED = r"hvdrun: rank 1 on localhost \(slot 1\) failed first after .*: killed by SIGKILL"


def story(
    victims: str,
    doing: str,
    code: int,
    said: str = "",
    *options: str,
    number: signal.Signals = signal.SIGKILL,
    forks: bool = False,
    nightly: bool = False,
) -> object:
    """Who is killed in which order, while the workers do what; hvdrun's exit code and words."""
    name = f"{number.name} of {victims.replace(' ', ', ')} while {doing}{', forked' if forks else ''}"
    return pytest.param(
        victims.split(), doing, code, said, options, number, forks, id=name, marks=[pytest.mark.nightly] * nightly
    )


FAMILIES, HIDDEN, JOINING, JOINED, JOINED_FAMILIES, SEMAPHORES, BLOCKED = JOBS
STORIES = [
    story("hvdrun", FAMILIES, KILLED),
    story("agent", FAMILIES, 75, LOST),
    story("hvdrun agent", FAMILIES, KILLED, forks=True),
    story("worker", FAMILIES, 137, FAILED, forks=True),
    story("watchdog agent", HIDDEN, 75, LOST),
    story("agent", FAMILIES, 143, SIGNALLED, number=signal.SIGTERM),
    # A stopped agent does not continue: it is killed, and its watchdog ends the workers. The workers have joined, so
    # the lease runs.
    story("agent", JOINED_FAMILIES, 75, SILENT, "--lease", "2s", number=signal.SIGSTOP),
    story("agent", JOINED, 75, LOST, forks=True),
    story("hvdrun", SEMAPHORES, KILLED),
    story("watchdog agent", FAMILIES, 75, LOST, nightly=True),
    story("worker agent", FAMILIES, 75, LOST, nightly=True),
    story("hvdrun", HIDDEN, KILLED, nightly=True),
    story("worker", HIDDEN, 137, FAILED, nightly=True),
    story("hvdrun", FAMILIES, KILLED, forks=True, nightly=True),
    story("agent", FAMILIES, 75, LOST, forks=True, nightly=True),
    story("worker", FAMILIES, 137, FAILED, nightly=True),
    *(story("hvdrun", doing, KILLED, nightly=True) for doing in (JOINING, JOINED, BLOCKED)),
    *(story("agent", doing, 75, LOST, nightly=True) for doing in (JOINING, JOINED, SEMAPHORES, BLOCKED)),
    *(story("worker", doing, 137, FAILED, nightly=True) for doing in (JOINED, SEMAPHORES, BLOCKED)),
    story("watchdog sequencer agent", JOINED, 75, LOST, forks=True, nightly=True),
]


@pytest.mark.parametrize(("victims", "doing", "code", "said", "options", "number", "forks"), STORIES)
def test_kill_of_a_part_leaves_nothing(
    hvdrun: Launcher,
    victims: list[str],
    doing: str,
    code: int,
    said: str,
    options: tuple[str, ...],
    number: signal.Signals,
    forks: bool,
) -> None:
    job = start(hvdrun, doing, *options, forks=forks)
    if victims[1:] == ["agent"] and victims[0] != "watchdog":  # the agent has no time to react to the first
        await_snapshot(job)  # no other process knows then which have left the worker's session and environment
        kill(job.agent, signal.SIGSTOP)
    for victim in victims:
        VICTIMS[victim](job, number)
    finished = job.running.wait()
    assert finished.returncode == code
    own = "".join(line for line in finished.stderr.splitlines(keepends=True) if not line.startswith("["))
    assert re.match(said if said == FAILED else f"{said}\\Z", own), finished.stderr
    assert "the sequencer on" not in own
    left = hvdrun.watch.settle()
    assert not left, str(left)


def test_a_guardian_s_death_and_that_of_workers_children_are_nothing_to_a_job(hvdrun: Launcher) -> None:
    job = start(hvdrun, FAMILIES)
    replace_watchdog(job)
    kill(job.pids["child", 0])
    kill(job.pids["stray", 1])
    hvdrun.write("go", "")
    finished = job.running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert hvdrun.processes("lives") == ()


@pytest.mark.parametrize(
    ("options", "command"),
    rest_nightly(
        [
            ((), ("python", "train.py")),
            (("--min-np", "1"), ("python", "train.py")),
            ((), ("sh", "-c", "python train.py; echo continues; sleep 600")),
        ]
    ),
    ids=["static", "elastic", "below a shell"],
)
def test_workers_end_when_agent_and_guardian_are_killed_together(
    hvdrun: Launcher, options: tuple[str, ...], command: tuple[str, ...]
) -> None:
    job = start(hvdrun, BLOCKED, *options, command=command)
    both = job.agent, find_watchdog(hvdrun)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that neither has the time to do anything about the other
        for pid in both:
            kill(pid, number)
    assert job.running.wait().returncode == 75
    wait_until(lambda: not hvdrun.processes())
    assert [*hvdrun.watch.temporary.glob("hvdrun-*")] == []


@pytest.mark.parametrize("victim", rest_nightly(["hvdrun", "agent"]))
def test_kill_at_any_moment_of_the_start_leaves_nothing(hvdrun: Launcher, victim: str) -> None:
    moments = random.Random(victim)  # noqa: S311 - moments, not secrets
    agent_ended = "its agent ended with SIGKILL (signal 9)"
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "sleep", "600")
        if victim == "agent":
            wait_until(lambda: find_agent(hvdrun) is not None)
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        kill(running.pid if victim == "hvdrun" else find_agent(hvdrun))
        finished = running.wait()
        assert (finished.returncode, finished.stderr) in {
            (KILLED, ""),
            (125, f"hvdrun: the host 'localhost' was lost before the job began: {agent_ended}.\n"),
            (75, f"hvdrun: host localhost was lost: {agent_ended}.\n"),
        }
        assert not hvdrun.watch.settle()
