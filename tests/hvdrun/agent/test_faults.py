"""An unexpected error in any task of an agent ends it and reaches the launcher; a lack of resources is one sentence.

The launcher ends a static job with it: see `tests/system/test_faults.py`.
"""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdrun.agent.agent import Agent, OrderReader, report_failure
from hvdrun.agent.streams import OutputForwarder
from rendezvous.core.model import Assignment
from rendezvous.server.authority import Authority
from rendezvous.wire import codec
from rendezvous.wire.hangs import AskStacks
from rendezvous.wire.notifications import Notification, Published
from rendezvous.wire.orders import AgentFailed, ListAddresses, Order, Output, Release
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import JOB, LAUNCH, WORKER, make_begin
from tests.hvdrun.agent.test_main import Conversation, describe, run_agent, start_agent
from tests.waiting import LIMIT_SECONDS, happen

SLEEP = "sleep", "600"
SCRIPT = sys.executable, "script.py"
PREPARE, ACTIVATE, OPEN = "prepare", "activate", "open"
# Of each task: the command of the job, and what happens until it begins.
TASKS: dict[str, tuple[tuple[str, ...], tuple[Order | str, ...]]] = {
    "activate the sequencer": (SLEEP, (ACTIVATE,)),
    "answer a connectivity check": (SLEEP, (ListAddresses(b"token", "a"),)),
    "ask the workers' torch": (SCRIPT, (LAUNCH,)),
    "ask the workers where they are": (SLEEP, (LAUNCH, AskStacks(1))),
    "attend to the workers": (SLEEP, ()),
    "deliver messages to the launcher": (SLEEP, (LAUNCH,)),
    "follow the server": (SLEEP, (LAUNCH,)),
    "kill what workers leave": (("true",), (LAUNCH,)),
    "look for a world of torch.distributed": (SLEEP, ()),
    "look for stopped processes": (SLEEP, ()),
    "obey the launcher": (SLEEP, ()),
    "obey the launcher's stream": (SLEEP, (LAUNCH,)),
    "prepare the workers": (SLEEP, ()),
    "read the forkserver's answers": (SCRIPT, ()),
    "read the launcher's orders": (SLEEP, (LAUNCH,)),
    "read the sequencer's reports": (SLEEP, (PREPARE,)),
    "report to the server": (SLEEP, (LAUNCH,)),
    "report what the workers' time is spent on": (SLEEP, ()),
    "start a server of gRPC": (SLEEP, (LAUNCH,)),
    "start a worker": (SLEEP, (LAUNCH,)),
    "start the sequencer": (SLEEP, (PREPARE,)),
    "stop a server of gRPC": (SLEEP, (LAUNCH, OPEN, Release())),
    "wait for a signal": (SLEEP, ()),
    "wait for the launcher's end": (SLEEP, (Release(),)),
    "wait for the workers or their output": (SLEEP, (Release(),)),
}
# The tasks of an agent that outlives its launcher.
OF_LASTING_AGENTS = {"deliver messages to the launcher", "obey the launcher's stream", "read the launcher's orders"}
ROOM = "set TMPDIR to a folder with room on that host"
RANK_0_OF_2 = Assignment(0, 2, 0, 2, 0, 1)


def fail_task(name: str) -> None:
    """The tasks of this name fail as soon as they begin, in this process."""
    create: Callable[..., asyncio.Task[Any]] = asyncio.create_task

    async def fail() -> None:
        raise ZeroDivisionError("of a test")

    def create_task(coro: Coroutine[Any, Any, Any], *, name: str | None = None) -> asyncio.Task[Any]:
        if name == failing:
            coro.close()
            coro = fail()
        return create(coro, name=name)

    failing = name
    asyncio.create_task = create_task  # type: ignore[assignment]  # it has no context


async def act(agent: Agent, orders: asyncio.StreamReader, deed: Order | str) -> None:
    """Let this happen."""

    async def post(_: Notification) -> None:
        """Not needed."""

    if deed == PREPARE:
        agent._sequencing.expect(RANK_0_OF_2)
        agent._sequencing.prepare(sys.executable)
    elif deed == ACTIVATE:
        agent._sequencing.activate(Published(1, ((WORKER, RANK_0_OF_2),), bytes(32)), post)
    elif deed == OPEN:
        await happen(agent._socket.exists, "the socket for workers")
    elif not isinstance(deed, str):
        orders.feed_data(codec.encode_order(deed))


@contextmanager
def make_folder() -> Iterator[Path]:
    """The folder of a job with a script, in which its agent leaves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SCRIPT[1]).touch()
        yield Path(folder)
        assert [path.name for path in Path(folder).iterdir()] == [SCRIPT[1]]


@pytest.mark.parametrize("name", TASKS)
@alone
async def test_a_failing_task_ends_the_agent_and_is_reported(name: str) -> None:
    command, deeds = TASKS[name]
    fail_task(name)
    with make_folder() as folder:
        begin = replace(make_begin(folder, *command, HVD_BACKEND="nccl"), credential=Authority(JOB).issue_agent("a"))
        if name in OF_LASTING_AGENTS:
            begin = replace(begin, server_timeout_seconds=LIMIT_SECONDS)
        output, (reading, writing) = OutputForwarder(), os.pipe()
        await output.open(writing)
        agent, orders = Agent(begin, folder / "agent", output), asyncio.StreamReader()
        running = asyncio.create_task(agent.run(OrderReader(orders)))
        await asyncio.sleep(0)
        for deed in deeds:
            await act(agent, orders, deed)
        with pytest.raises(ZeroDivisionError, match="of a test"), report_failure("a", output):
            await running
        output.close()
        messages = [codec.decode_agent_message(data) for data in codec.FrameReader().feed(os.read(reading, 100_000))]
        os.close(reading)
        (failure,) = (message for message in messages if isinstance(message, AgentFailed))
        assert "in fail" in failure.traceback


WITHOUT_FOLDER = """
import sys
from pathlib import Path
from hvdrun.agent import __main__, agent
agent.choose_folder = lambda _: Path("/dev/null/hvdrun")
sys.exit(__main__.main())
"""
WITHOUT_SOCKET = """
import sys
from pathlib import Path
from hvdrun.agent import __main__, agent
choose = agent.choose_folder
agent.choose_folder = lambda environment: choose(environment).with_name("long" * 30)
sys.exit(__main__.main())
"""
WITHOUT_WATCHDOG = """
import sys
from hvdrun.agent import __main__
sys.executable = "/no/such/python"
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (WITHOUT_FOLDER, f"create its folder /dev/null/hvdrun: Not a directory; {ROOM}"),
        (WITHOUT_SOCKET, f"create its socket .*: AF_UNIX path too long; {ROOM}"),
        (WITHOUT_WATCHDOG, "start its watchdog: No such file or directory; raise the limits .* on that host"),
    ],
)
def test_a_lack_of_resources_in_an_agent_is_reported_in_one_sentence(
    program: str, sentence: str, tmp_path: Path
) -> None:
    with start_agent(tmp_path, "-c", program) as agent:
        conversation = Conversation(agent)
        conversation.send(describe(tmp_path))
        conversation.send(LAUNCH)
        while not isinstance(failed := conversation.receive(), AgentFailed):
            pass
        errors = conversation.end()
    assert re.fullmatch(rf"the agent on 'a' cannot {sentence}\.", failed.error)
    assert (failed.traceback, errors) == ("", f"{failed.error}\n")


FAILS_EARLY = """
import sys
from hvdrun.agent import __main__, agent
{} = lambda *_: 1 / 0
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("name", ["Watchdog.start", "ForkSpawner.__init__", "ProbeResponder.__init__"])
def test_an_agent_reports_an_unexpected_error_of_its_start(name: str, tmp_path: Path) -> None:
    orders = codec.encode_order(describe(tmp_path)) + codec.encode_order(Release())
    returncode, messages, _ = run_agent(orders, tmp_path, "-c", FAILS_EARLY.format(f"agent.{name}"))
    (failure,) = (message for message in messages if isinstance(message, AgentFailed))
    assert failure.error.endswith(" failed: ZeroDivisionError: division by zero")
    assert ", in serve" in failure.traceback
    assert returncode == 1


FAILS_AT_LAST = """
import sys
from hvdrun.agent import __main__
from hvdrun.processes.reaper import Reaper
Reaper._look = lambda _: 1 / 0
sys.exit(__main__.main())
"""


def test_an_agent_reports_an_unexpected_error_of_its_cleanup(tmp_path: Path) -> None:
    with start_agent(tmp_path, "-c", FAILS_AT_LAST) as agent:
        conversation = Conversation(agent)
        conversation.begin(tmp_path)
        conversation.send(LAUNCH)
        while not isinstance(conversation.receive(), Output):
            pass
        conversation.send(Release())
        while not isinstance(failed := conversation.receive(), AgentFailed):
            pass
        assert ", in _run" in failed.traceback
        assert "ZeroDivisionError" in conversation.end()
