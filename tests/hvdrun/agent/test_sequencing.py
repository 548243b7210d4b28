"""The owner of the sequencer, with programs in its place that do well and that do not."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from hvdrun.agent.accounts import Accounts
from hvdrun.agent.sequencing import Sequencing
from hvdrun.agent.spawn import ExecSpawner, WorkerEnvironment
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.agent.watch import Watch
from hvdrun.processes.child import Children
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Announce
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.wire.notifications import Notification, Published, SequencerFailed
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import JOB, ORIGIN, make_begin
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.agent.watching import find_ours
from tests.waiting import LIMIT_SECONDS, happen

KEY = bytes(range(32))
FIRST = Assignment(0, 2, 0, 2, 0, 1)
SECOND = Assignment(1, 2, 1, 2, 0, 1)
ALONE = Assignment(0, 1, 0, 1, 0, 1)
NAME = "the sequencer on a, which orders the workers' collectives,"

SERVES = """
import os, pathlib, sys
print("an import has something to say")
pathlib.Path("pid").write_text(str(os.getpid()))
pathlib.Path("environment").write_text(repr(dict(os.environ)))
print('{"port": 4712}', flush=True)
for line in sys.stdin:
    with open("heard", "a") as heard:
        heard.write(line)
"""
REPORTS = (
    SERVES
    + """
    print('{"waits": 1}', flush=True)
"""
)
DIES = "import sys; sys.exit('No module named \\'numpy\\'')"
BABBLES = "import sys\nsys.stdout.write('x' * 200_000)\nsys.stdout.flush()\nsys.stdin.read()"
IS_MUTE = "import sys; print('hello', flush=True); sys.stdin.read()"


def opened(*generations: int) -> list[Announce]:
    """What is posted of generations that are served."""
    return [Announce(generation, Endpoint("127.0.0.1", 4712)) for generation in generations]


@dataclass
class Room:
    """An owner, what it posts and warns of, and the folder of its programs."""

    folder: Path
    sequencing: Sequencing
    topic: list[Notification] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def expect(self, interpreter: str = sys.executable) -> None:
        """The first of two workers, which has this interpreter, is to be here."""
        self.sequencing.expect(FIRST)
        self.sequencing.prepare(interpreter)

    def publish(self, generation: int = 1, *assignments: Assignment) -> None:
        """A generation is formed, with these members here."""
        members = tuple((Worker(Slot("a", numbers.rank), 1), numbers) for numbers in assignments or (FIRST, SECOND))
        self.sequencing.activate(Published(generation, members, KEY), self.post)

    async def post(self, notice: Notification) -> None:
        """As a relay would."""
        self.topic.append(notice)

    async def read_notices(self, count: int = 1) -> list[Notification]:
        """What was posted, once it is as much."""
        await happen(lambda: len(self.topic) == count, f"{count} notices")
        return self.topic

    async def warned(self) -> str:
        """The one warning."""
        await happen(lambda: self.warnings != [], "a warning")
        (warning,) = self.warnings
        return warning

    def read_pid(self) -> int:
        """The pid of the last program that has started."""
        return int((self.folder / "pid").read_text())

    async def open(self) -> int:
        """Have a first generation served: the pid."""
        self.expect()
        self.publish()
        assert await self.read_notices() == opened(1)
        return self.read_pid()

    async def heard(self, count: int) -> list[str]:
        """The lines that the program has read, once there are so many."""
        path = self.folder / "heard"
        await happen(lambda: path.exists() and path.read_text().count("\n") == count, f"{count} lines")
        return path.read_text().splitlines()


@asynccontextmanager
async def owning(
    program: str, limit_seconds: float = LIMIT_SECONDS, *, elastic: bool = False, expects_init: bool = False
) -> AsyncIterator[Room]:
    """An owner on host a, both of whose interpreters run the program; in the end nothing of it is left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(program)
        os.environ["PYTHONPATH"] = name
        begin = make_begin(folder, PYTHONPATH=name, OMP_NUM_THREADS="7")
        begin = replace(begin, outlives_losses=elastic)
        children = Children()
        watchdog = Watchdog(ORIGIN, [folder / "nothing"], children=children)
        watchdog.start()
        warnings: list[str] = []
        waits: list[str] = []
        forker = Mock(fork_module=AsyncMock(return_value=None), expects_init=expects_init)  # has nothing to fork from
        sequencing = Sequencing(
            begin,
            forker,
            children,
            watchdog,
            warnings.append,
            note_waits=waits.append,
            limit_seconds=limit_seconds,
            module="program",
        )
        spawner = ExecSpawner(begin, WorkerEnvironment(begin, folder / "agent.sock"))
        feed = InputFeed(lambda: None)
        accounts = Accounts(folder / "agent.sock", lambda _: None)
        output = OutputForwarder()
        watch = Watch(JOB, "a", spawner, output, feed=feed, children=children, watchdog=watchdog, accounts=accounts)
        watch.open()
        descriptors = len(list_settled_descriptors())
        try:
            yield Room(folder, sequencing, warnings=warnings, waits=waits)
        finally:
            await sequencing.close()
            await watch.close()
            left = find_ours()
            watchdog.end()
        assert left == []
        assert len(list_descriptors()) <= descriptors


@alone
async def test_one_process_serves_all_generations_of_a_job() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        room.sequencing.prepare(sys.executable)  # the second worker joins
        room.publish()  # reported again, after a broken connection
        room.publish(2)
        assert await room.read_notices(2) == opened(1, 2)
        rest = f'"size": 2, "key": "{KEY.hex()}", "reports": true'
        assert await room.heard(2) == [f'{{"generation": 1, {rest}}}', f'{{"generation": 2, {rest}}}']
        assert [(process.pid, process.session) for process in find_ours()] == [(pid, pid)]
        environment = (room.folder / "environment").read_text()
        assert "'OMP_NUM_THREADS': '1'" in environment
        assert KEY.hex() not in environment
        assert KEY.hex() not in " ".join(psutil.Process(pid).cmdline())
        assert room.warnings == []


@alone
async def test_a_report_of_ranks_that_wait_is_passed_on() -> None:
    async with owning(REPORTS) as room:
        await room.open()
        await happen(lambda: room.waits == ['{"waits": 1}'], "a report")


@alone
async def test_a_stop_notice_reaches_this_generation_and_each_later_one() -> None:
    async with owning(SERVES) as room:
        await room.open()
        room.sequencing.stop()
        room.publish(2)
        heard = await room.heard(4)
        assert [line for line in heard if line == "stop"] == [heard[1], heard[2]]


@alone
async def test_a_sequencer_starts_with_workers_that_are_expected_to_join_and_again_where_that_failed() -> None:
    async with owning("open('ready')\n" + SERVES, expects_init=True) as room:
        for assignment in (SECOND, FIRST):
            opening = room.sequencing._opening
            assert opening is None
            room.sequencing.expect(assignment)
        opening = room.sequencing._opening
        assert opening is not None
        await asyncio.wait({opening})
        (room.folder / "ready").touch()
        room.sequencing.prepare(sys.executable)
        room.publish()
        assert await room.read_notices() == opened(1)


@alone
async def test_a_host_without_rank_0_of_several_has_no_sequencer() -> None:
    async with owning(SERVES) as room:
        room.sequencing.prepare(sys.executable)  # nothing is expected here
        room.sequencing.expect(SECOND)
        room.sequencing.expect(ALONE)
        room.sequencing.prepare(sys.executable)
        room.publish(1, SECOND)
        room.publish(2, ALONE)
        assert room.sequencing._opening is None
        room.publish(3, FIRST)  # which was not expected to be here
        assert await room.read_notices() == opened(3)


@alone
async def test_a_sequencer_that_dies_immediately_is_explained_with_the_remedy() -> None:
    async with owning(DIES) as room:
        room.expect("/usr/bin/nothing")
        room.publish()
        reason = (
            "on a, with /usr/bin/nothing, it could not be started: No such file or directory; "
            f"with {sys.executable}, it ended with exit code 1 (No module named 'numpy'): install NumPy there"
        )
        assert await room.read_notices() == [SequencerFailed(1, reason)]
        room.publish(2)  # another generation, another try
        assert (await room.read_notices(2))[1] == SequencerFailed(2, reason)
        assert room.warnings == []


@alone
async def test_where_the_worker_s_python_cannot_run_it_the_agent_s_own_does() -> None:
    async with owning(SERVES) as room:
        lame = room.folder / "python"
        lame.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
        lame.chmod(0o755)
        room.expect(str(lame))
        room.publish()
        assert await room.read_notices() == opened(1)


@pytest.mark.parametrize(
    ("program", "limit_seconds", "reason"),
    [(BABBLES, LIMIT_SECONDS, "its output is not a port"), (IS_MUTE, 0.5, "it did not report its port within 0.5 s")],
)
@alone
async def test_a_sequencer_that_reports_no_port_is_killed_and_reported(
    program: str, limit_seconds: float, reason: str
) -> None:
    async with owning(program, limit_seconds) as room:
        room.publish()
        assert await room.read_notices() == [SequencerFailed(1, f"on a, {reason}")]
        await happen(lambda: find_ours() == [])


@alone
async def test_a_sequencer_that_ends_is_reported_and_replaced_in_the_next_generation() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        os.kill(pid, SIGKILL)
        assert await room.warned() == f"{NAME} is gone: it ended with SIGKILL (signal 9)"
        room.sequencing.prepare(sys.executable)
        room.publish(2)
        assert await room.read_notices(2) == opened(1, 2)
        assert room.read_pid() != pid


@alone
async def test_a_sequencer_that_is_being_started_or_serves_leaves_nothing_behind() -> None:
    async with owning(IS_MUTE) as room:
        room.expect()
        room.publish()
        await happen(lambda: find_ours() != [])
    async with owning(SERVES) as room:
        await room.open()
        await room.sequencing.close()
        room.sequencing.prepare(sys.executable)
        room.publish(2)
        assert len(room.topic) == 1


@alone
async def test_in_an_elastic_job_a_sequencer_is_ready_on_every_host() -> None:
    async with owning(SERVES, elastic=True) as room:
        room.sequencing.expect(SECOND)  # rank 0 is elsewhere, for now
        room.sequencing.prepare(sys.executable)
        await happen((room.folder / "pid").exists)
        room.publish(2, FIRST)
        assert await room.read_notices() == opened(2)


async def stop(room: Room) -> int:
    """Stop one that serves, and have that reported twice: the pid."""
    pid = await room.open()
    await room.heard(1)
    os.kill(pid, SIGSTOP)
    assert room.sequencing.list_living() == ((pid, "its process"),)
    for _ in range(2):
        room.sequencing.note_stopped(pid, "its process was stopped")
    room.sequencing.note_stopped(pid + 1, "the agent has not started it")
    return pid


@alone
async def test_in_an_elastic_job_a_stopped_sequencer_is_replaced_before_the_next_generation() -> None:
    async with owning(SERVES, elastic=True) as room:
        await stop(room)
        (room.folder / "pid").unlink()
        assert await room.warned() == f"{NAME} is gone: its process was stopped"
        await happen((room.folder / "pid").exists)  # before the first request for it
        room.publish(2)
        assert await room.read_notices(2) == opened(1, 2)
        await room.heard(2)


@alone
async def test_a_stopped_sequencer_of_a_static_job_is_reported_once() -> None:
    async with owning(SERVES) as room:
        pid = await stop(room)
        remedy = f"the workers wait for it. Continue it: kill -CONT {pid}"
        assert await room.warned() == f"{NAME} does not run: its process was stopped; {remedy}"
        assert is_alive(pid)


@alone
async def test_a_sequencer_that_turns_out_to_be_dead_is_replaced_for_the_same_generation() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        os.kill(pid, SIGKILL)
        while is_alive(pid):  # nothing else runs meanwhile, so that its end has not been heard of
            pass
        room.publish(2)
        assert await room.read_notices(2) == opened(1, 2)
        assert room.read_pid() != pid
