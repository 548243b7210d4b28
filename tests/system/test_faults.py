"""An unexpected error in any task of hvdrun ends the job: exit code 125, a sentence, and nothing is left.

Tasks of an agent are in `tests/hvdrun/agent/test_faults.py`; the launcher gets their errors in one way.
"""

import ast
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hvdrun.processes.background import BackgroundTasks
from tests.house.sources import read_sources
from tests.hvdrun.agent.test_faults import TASKS as OF_SERVING_AGENTS
from tests.hvdrun.joining.test_listener import Agent, opened, started, take
from tests.hvdrun.network.test_faults import TASKS as OF_CHECKS
from tests.system.launcher import Launcher
from tests.system.terminal import Terminal
from tests.waiting import in_loop

LIMIT_SECONDS = 60.0
# The task of the first word fails as soon as it begins; the other words are those of hvdrun.
FAILS = """
import asyncio, sys
from hvdrun.cli.program import main
from hvdrun.console.writer import Writer
from hvdrun.job import Job
from hvdrun.processes.background import BackgroundTasks
from hvdrun.transport.child import LocalTransport

async def fail():
    raise ZeroDivisionError("of a test")

def wrap(create):
    def create_task(*given, name=None, **named):
        *owner, coroutine = given
        if name == sys.argv[1]:
            coroutine.close()
            coroutine = fail()
        return create(*owner, coroutine, name=name, **named)
    return create_task

start = LocalTransport._start
agent = "from hvdrun.agent import __main__, watch; watch.Watch._note_end = lambda *_: 1 / 0; __main__.main()"

def start_agent(transport, command):
    return start(transport, (sys.executable, "-P", "-c", agent))

def fail_in_thread(*_):
    raise ZeroDivisionError("of a test")

if sys.argv[1] == "output":
    Writer._write = fail_in_thread
if sys.argv[1] == "signal":
    Job._stop = fail_in_thread
if sys.argv[1] == "agent":
    LocalTransport._start = start_agent
BackgroundTasks.create_task = wrap(BackgroundTasks.create_task)
asyncio.create_task = wrap(asyncio.create_task)
sys.exit(main(sys.argv[2:] if sys.argv[2] == "-v" else sys.argv[5:]))  # python -m hvdrun
"""
SENTENCE = "hvdrun: this is a bug in hvdrun, please report it with this traceback: ZeroDivisionError: of a test"
LONG = ("-np", "1", "sleep", "600")
SHORT = ("-np", "1", "true")
SCRIPT = ("--min-np", "1", "--host-discovery-script", "echo there.invalid:1", *LONG)
LOSES_AGENT = (
    *("-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1"),
    *("sh", "-c", '[ "$HVD_SLOT" = localhost:0 ] || kill -9 $PPID; sleep 600'),
)
WAITS = ("--wait-for-agents", "--bind", "127.0.0.1", "--token-file", "job.token")
STATIC = (*WAITS, *LONG)
JOBS = {
    "abandon an agent": LOSES_AGENT,
    "accept agents": STATIC,
    "bring in the hosts": LONG,
    "close an agent": LOSES_AGENT,
    "close the agents": SHORT,
    "find hosts": LONG,
    "keep waiting agents alive": ("--min-np", "1", "--host-discovery-script", "echo localhost:1", *LONG),
    "listen to an agent": LONG,
    "look up a host": SCRIPT,
    "authenticate an agent": STATIC,
    "open the way to an agent": LONG,
    "output": LONG,
    "poll the discovery script": SCRIPT,
    "read an agent's first messages": ("--detach", *LONG),
    "read standard input": ("--stdin", "0", *LONG),
    "report agents": STATIC,
    "start an agent": LONG,
    "start the discovery script": SCRIPT,
    "sum up losses": LONG,
    "wait for a signal": SHORT,
    "wait for what a signal may cut short": SHORT,
    "look for the start": ("--detach", *LONG),
}
DEAREST = {"abandon an agent", "authenticate an agent", "close an agent", "read standard input", "report agents"}
AT_LISTENER = {
    "forward an agent to the rendezvous",
    "forward what comes from inside",
    "forward what comes from outside",
}
AT_TERMINAL = {"show the start"}
OF_AGENTS = {"join and serve", "forward a call to the rendezvous"}  # `hvdrun agent` ends by them
ELSEWHERE = {
    "examine this host",  # of an agent, which answers why it cannot: see tests/hvdrun/agent/test_examiner.py
    "answer a question",  # waits for a client, see tests/hvdrun/jobs/test_questions.py
    "find the ranks that hold up the others",  # waits for a hang, see tests/hvdrun/hangs/test_hold_ups.py
    "keep a tunnel",  # of a server that was started again, see tests/hvdrun/hosts/test_lasting_tunnel.py
    "write the state",  # of a server with a journal, see tests/rendezvous/server/test_commits.py
    "tick",  # of the server, see tests/rendezvous/server/test_server.py
    "tell the start",  # of run() where a person watches, see tests/hvdrun/console/test_start_line.py
    "hvdrun-call",  # see tests/hvdrun/processes/test_background.py
    "hvdrun-scarcity",  # waits for an event, see tests/hvdrun/processes/test_scarcity.py
    "hvdrun-notices",  # in workers, see tests/rendezvous/client/test_subscription.py
}
OVER_SSH = {"hvdrun-ssh-forwarder", "serve a tunnel's connection"}  # see tests/hvdrun/transport/ssh/test_faults.py


def find_tasks() -> Iterator[str]:
    """The names of the tasks and threads of hvdrun and its agents, as the code creates them."""
    for _, source in read_sources("hvdrun", "rendezvous"):
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(ast.Name("start_task"), [_, ast.Constant(str(name)), *_]):
                    yield name
                case ast.Call(ast.Attribute(attr="create_task" | "Thread"), keywords=given):
                    match [keyword.value for keyword in given if keyword.arg == "name"]:
                        case [ast.Constant(str(name))]:
                            yield name
                        case [ast.Name("name")]:
                            pass  # the caller gives it
                        case _:
                            yield f"unnamed: {ast.unparse(node)}"


def test_every_task_has_a_case() -> None:
    cases = {*JOBS, *AT_LISTENER, *AT_TERMINAL, *OF_AGENTS, *OF_SERVING_AGENTS, *OF_CHECKS, *ELSEWHERE, *OVER_SSH}
    assert set(find_tasks()) == cases


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in DEAREST else []) for name in JOBS]
)
def test_a_failing_task_ends_the_job(name: str, hvdrun: Launcher) -> None:
    program = hvdrun.write("fails.py", FAILS)
    job = hvdrun.start("-v", *JOBS[name], before=(sys.executable, str(program), name), forks=True)
    if name == "authenticate an agent":
        line = job.stderr.wait_for(r"on each host run: hvdrun (agent --join \S+ --token-file \S+)$", LIMIT_SECONDS)
        agent = hvdrun.start(*line[1].split(), "--join-timeout", "1s", forks=True)
    ended = job.wait(LIMIT_SECONDS)
    assert ended.returncode == 125
    assert ended.stderr.splitlines()[-1] == SENTENCE
    assert "Traceback" in ended.stderr
    if name == "authenticate an agent":
        assert agent.wait(LIMIT_SECONDS).returncode == 75


def test_a_failing_signal_handler_ends_the_job(hvdrun: Launcher) -> None:
    program = hvdrun.write("fails.py", FAILS)
    words = ("-np", "1", "sh", "-c", "echo runs; sleep 600")
    job = hvdrun.start("-v", *words, before=(sys.executable, str(program), "signal"), forks=True)
    job.stdout.wait_for("runs", LIMIT_SECONDS)
    job.send(signal.SIGTERM)
    ended = job.wait(LIMIT_SECONDS)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (125, SENTENCE)


def test_a_failing_callback_of_an_agent_ends_the_job(hvdrun: Launcher) -> None:
    program = hvdrun.write("fails.py", FAILS)
    ended = hvdrun.start("-v", *SHORT, before=(sys.executable, str(program), "agent"), forks=True).wait(LIMIT_SECONDS)
    assert ended.returncode == 125
    assert ended.stderr.splitlines()[-1].endswith("the agent on localhost failed: ZeroDivisionError: division by zero")
    assert ", in _reap" in ended.stderr  # the traceback is that of the agent


def test_a_failing_agent_of_the_only_host_ends_an_elastic_job(hvdrun: Launcher) -> None:
    program = hvdrun.write("fails.py", FAILS)
    before = (sys.executable, str(program), "agent")
    ended = hvdrun.start("-v", "--min-np", "1", *SHORT, before=before, forks=True).wait(LIMIT_SECONDS)
    assert ended.returncode == 125
    assert ended.stderr.splitlines()[-1].endswith("the agent on localhost failed: ZeroDivisionError: division by zero")
    assert ", in _reap" in ended.stderr  # the traceback is that of the agent


@pytest.mark.parametrize("name", sorted(AT_TERMINAL))
def test_a_failing_task_of_a_job_at_a_terminal_ends_the_job(name: str, hvdrun: Launcher) -> None:
    words = sys.executable, str(hvdrun.write("fails.py", FAILS)), name, "-v", *LONG
    with Terminal(*words, directory=hvdrun.directory, environment=hvdrun.environment()) as terminal:
        assert terminal.process.wait(LIMIT_SECONDS) == 125
        terminal.wait_for("ZeroDivisionError: of a test", LIMIT_SECONDS)


def test_a_failing_task_ends_an_agent_that_joins(hvdrun: Launcher) -> None:
    program = hvdrun.write("fails.py", FAILS)
    words = ("agent", "--join", "127.0.0.1:1", "--token-file", "job.token")
    before = (sys.executable, str(program), "join and serve")
    ended = hvdrun.start(*words, before=before, forks=True).wait(LIMIT_SECONDS)
    assert ended.returncode == 125
    assert ended.stderr.splitlines()[-1] == SENTENCE
    assert "Traceback" in ended.stderr


def fail_task(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of this name fails as soon as it begins."""
    create: Callable[..., asyncio.Task[Any]] = BackgroundTasks.create_task

    async def fail() -> None:
        raise ZeroDivisionError(name)

    def create_task(tasks: BackgroundTasks, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
        if named["name"] == name:
            coro.close()
            coro = fail()
        return create(tasks, coro, **named)

    monkeypatch.setattr(BackgroundTasks, "create_task", create_task)


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[Agent]:
    """An agent that has joined, and leads a call to the rendezvous."""
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        await launcher.roster.await_change(())
        transport = take(launcher)
        await transport.open()
        _, writer = await asyncio.open_connection("127.0.0.1", await transport.tunnel(launcher.place.port))
        try:
            yield agent
        finally:
            writer.close()


@pytest.mark.parametrize("name", sorted(AT_LISTENER))
def test_a_failing_task_at_the_door_ends_the_launcher_s_tasks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_task(name, monkeypatch)

    @in_loop
    async def run() -> None:
        with pytest.raises(ZeroDivisionError, match=name):
            async with calling(tmp_path / "job.token"):
                await asyncio.Event().wait()

    run()


def test_a_failing_call_to_the_rendezvous_ends_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "forward a call to the rendezvous"
    fail_task(name, monkeypatch)

    @in_loop
    async def run() -> None:
        async with calling(tmp_path / "job.token") as agent:
            with pytest.raises(ZeroDivisionError, match=name):
                await agent.end()

    run()
