"""Agents that come by themselves, with real jobs on this machine."""

import re
import signal
import sys

import pytest

from tests.deploy.samples import check_sample
from tests.deploy.systemd.test_unit import UNIT, start_line
from tests.system.launcher import Launcher, Running
from tests.system.scripts import WORLD

PLACE = ("--bind", "127.0.0.1", "--token-file", "job.token")
LINE = r"on each host run: hvdrun (agent --join \S+ --token-file \S+)$"
PRINTS = """
import os
print(os.environ["RANK"], os.environ["HOROVOD_HOSTNAME"], os.environ.get("MARK"), flush=True)
"""
TRAINS = """
import pathlib, sys, time
import torch
import worker_runtime.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    seen = 0
    while not hvd.broadcast_object(pathlib.Path("enough").exists(), name="enough"):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if hvd.size() != seen and hvd.rank() == 0:
            seen = hvd.size()
            print("size", seen, flush=True)
        time.sleep(0.05)

train(state)
"""

# No host can be reached by the others.
CANNOT_LAUNCH = """
import sys
from hvdrun.cli.program import main
from hvdrun.errors import LaunchError
from hvdrun.hosts.network_plan import NetworkPlan

async def extend(plan, spec, hosts):
    return {host: LaunchError("of a test") for host in hosts}

NetworkPlan.extend = extend
sys.exit(main(sys.argv[4:]))  # python -m hvdrun
"""


def start_agent(hvdrun: Launcher, line: str, name: str, slots: int = 1) -> Running:
    """Run the line that hvdrun has printed."""
    words = [*line.split(), "--name", name, "--slots", str(slots)]
    return hvdrun.start(*words, forks=True, environment={"MARK": f"of {name}"})


@pytest.mark.sample
def test_a_static_job_starts_when_its_agents_have_come(hvdrun: Launcher, rewrite: bool) -> None:
    """One agent is started by the line that the launcher prints, the other one as systemd starts it."""
    hvdrun.write("show.py", PRINTS)
    running = hvdrun.start("-np", "3", "--wait-for-agents", *PLACE[:2], "python", "show.py")
    line = running.stderr.wait_for(LINE, 60)[1]
    late = start_agent(hvdrun, line, "node2", 2)
    running.stderr.wait_for(r"^hvdrun: agents: node2 \(2 slots\); 2 of 3 slots\.$", 60)
    _, _, place, _, token = line.split()
    unit = UNIT.read_text(encoding="utf-8").replace("/etc/hvdrun/token", token)
    words = start_line(unit.replace("${JOIN}", place).replace("${SLOTS}", "2"))[1:]
    first = start_agent(hvdrun, " ".join(words), "node1", 2)
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    reported = sorted(finished.stdout.splitlines())
    assert reported == ["[0@node1] 0 node1 of node1", "[1@node1] 1 node1 of node1", "[2@node2] 2 node2 of node2"]
    check_sample("launcher", finished.stderr, rewrite=rewrite)
    for name, agent in (("systemd", first), ("agent", late)):
        ended = agent.wait()
        assert (ended.returncode, ended.stdout) == (0, "")
        check_sample(name, ended.stderr, rewrite=rewrite)
    assert sorted(path.name for path in hvdrun.directory.iterdir()) == ["show.py"]


@pytest.mark.parametrize(("words", "exit_code"), [((), 125), (("--min-np", "2"), 75)], ids=["static", "elastic"])
def test_agents_get_the_exit_code_of_a_job_that_cannot_be_launched(
    words: tuple[str, ...], exit_code: int, hvdrun: Launcher
) -> None:
    before = (sys.executable, str(hvdrun.write("cannot.py", CANNOT_LAUNCH)))
    running = hvdrun.start("-np", "2", *words, "--wait-for-agents", *PLACE[:2], "true", before=before, forks=True)
    line = running.stderr.wait_for(LINE, 60)[1]
    agents = [start_agent(hvdrun, line, name) for name in "ab"]
    assert running.wait().returncode == exit_code
    assert [agent.wait().returncode for agent in agents] == [exit_code, exit_code]


def test_an_agent_whose_launcher_is_gone_ends_its_workers_and_may_start_again(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "1", "--wait-for-agents", *PLACE, "sh", "-c", "echo up; exec sleep 600")
    agent = start_agent(hvdrun, running.stderr.wait_for(LINE, 60)[1], "a")
    running.stdout.wait_for(r"up$", 60)
    running.send(signal.SIGKILL)
    running.wait()
    ended = agent.wait()
    assert ended.returncode == 75
    assert ended.stderr.endswith("hvdrun: the launcher disappeared: this agent stopped its workers.\n")


def test_ctrl_c_ends_an_agent_and_its_workers_with_130_and_a_sentence(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "1", "--wait-for-agents", *PLACE, "sh", "-c", "echo up; exec sleep 600")
    agent = start_agent(hvdrun, running.stderr.wait_for(LINE, 60)[1], "a")
    running.stdout.wait_for(r"up$", 60)
    agent.send(signal.SIGINT)
    ended = agent.wait()
    assert ended.returncode == 130
    assert ended.stderr.endswith("hvdrun: this agent received a signal and stopped its workers.\n")
    finished = running.wait()
    assert finished.returncode == 130
    assert finished.stderr.endswith("hvdrun: the agent on host a received SIGINT.\n")


# Sends the signal before hvdrun answers signals, and once more while it ends.
SIGNALS_ITSELF = """
import os, signal, sys
from hvdrun.cli.program import main
from hvdrun.job import Job
from hvdrun.joining.roster import Roster

def signal_before(work):
    async def run(*given):
        os.kill(os.getpid(), int(sys.argv[1]))
        return await work(*given)
    return run

Job._make_server = signal_before(Job._make_server)
Roster.release = signal_before(Roster.release)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as python -m hvdrun does
sys.exit(main(sys.argv[5:]))  # the words before are the number, and python -m hvdrun
"""


@pytest.mark.parametrize(
    ("number", "exit_code", "sentences"),
    [(signal.SIGTERM, 143, ["hvdrun: received SIGTERM."]), (signal.SIGINT, -signal.SIGINT, [])],
)
def test_a_signal_leaves_no_token_file_however_early_or_late_it_comes(
    number: signal.Signals, exit_code: int, sentences: list[str], hvdrun: Launcher
) -> None:
    before = (sys.executable, str(hvdrun.write("signals.py", SIGNALS_ITSELF)), str(int(number)))
    ended = hvdrun.start("-np", "1", "--wait-for-agents", *PLACE[:2], "true", before=before, forks=True).wait()
    assert (ended.returncode, ended.stderr.splitlines()[1:]) == (exit_code, sentences)
    assert sorted(path.name for path in hvdrun.directory.iterdir()) == ["signals.py"]


NOTICED = "the job has ended, as its stop notice asked (exit code 75): start it again to continue."


@pytest.mark.parametrize(
    ("number", "exit_code", "sentences"),
    [
        (signal.SIGUSR2, 75, [f"hvdrun: {NOTICED}"]),
        (signal.SIGTERM, 143, ["hvdrun: received SIGTERM."]),
        (signal.SIGINT, -signal.SIGINT, []),
    ],
)
def test_a_signal_ends_the_wait_for_agents_with_a_sentence(
    number: signal.Signals, exit_code: int, sentences: list[str], hvdrun: Launcher
) -> None:
    running = hvdrun.start("-np", "3", "--wait-for-agents", *PLACE, "true")
    agent = start_agent(hvdrun, running.stderr.wait_for(LINE, 60)[1], "a")
    running.stderr.wait_for(r"^hvdrun: agents: a \(1 slot\); 1 of 3 slots\.$", 60)
    running.send(number)
    finished = running.wait()
    assert finished.returncode == exit_code
    assert finished.stderr.splitlines()[2:] == sentences
    assert agent.wait().returncode == (130 if number is signal.SIGINT else exit_code)


@pytest.mark.nightly
def test_an_elastic_job_loses_an_agent_and_takes_it_in_again(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    sizes = ("-np", "2", "--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "1", "1")
    running = hvdrun.start(*sizes, "--wait-for-agents", *PLACE, "python", "train.py")
    line = running.stderr.wait_for(LINE, 60)[1]
    stays, goes = start_agent(hvdrun, line, "a"), start_agent(hvdrun, line, "b")
    running.stdout.wait_for(r"size 2$", 60)
    goes.send(signal.SIGKILL)
    running.stdout.wait_for(r"size 1$", 60)
    again = start_agent(hvdrun, line, "b")
    more = start_agent(hvdrun, line, "c")
    running.stdout.wait_for(r"size 3$", 60)
    hvdrun.write("enough", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert re.search(
        r"^hvdrun: host b was lost: the connection of its agent ended; see what .* there\.$",
        finished.stderr,
        re.MULTILINE,
    )
    assert [agent.wait().returncode for agent in (stays, again, more)] == [0, 0, 0]
    assert goes.wait().returncode == -signal.SIGKILL


@pytest.mark.nightly
def test_all_workers_are_started_again_when_an_agent_is_lost_and_when_one_is_ordered_to_leave(hvdrun: Launcher) -> None:
    """SIGTERM to an agent is a stop notice: the round that follows is planned, and costs no restart."""
    hvdrun.write("world.py", WORLD)
    options = ("-np", "2", "--max-restarts", "1", "--blacklist-cooldown-range", "1", "1", "--wait-for-agents")
    running = hvdrun.start(*options, *PLACE, "python", "world.py")
    line = running.stderr.wait_for(LINE, 60)[1]
    lost, stays = start_agent(hvdrun, line, "a"), start_agent(hvdrun, line, "b")
    running.stdout.wait_for("round 0 rank . of 2 on a", 60)
    running.stdout.wait_for("round 0 rank . of 2 on b", 60)
    lost.send(signal.SIGKILL)
    running.stderr.wait_for("host a was lost: .*; the job waits for slots: 1 of 2", 60)
    leaves = start_agent(hvdrun, line, "a")
    running.stdout.wait_for("round 1 rank . of 2 on a", 60)
    running.stdout.wait_for("round 1 rank . of 2 on b", 60)
    leaves.send(signal.SIGTERM)
    running.stderr.wait_for("host a got a stop notice; the job waits for slots: 1 of 2", 60)
    comes = start_agent(hvdrun, line, "c")
    running.stdout.wait_for("round 2 rank . of 2 on c", 60)
    running.stdout.wait_for("round 2 rank . of 2 on b", 60)
    hvdrun.write("end", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    # The host may be lost before its first report: then that loss costs no restart either.
    losses = re.findall(r"all 2 workers are started again(| \([01] of 1 restarts left\));", finished.stderr)
    assert [bool(left) for left in losses] == [True, False]
    assert [agent.wait().returncode for agent in (lost, leaves, stays, comes)] == [-signal.SIGKILL, 75, 0, 0]
