"""The owner of the sequencer, with programs in its place that do well and that do not; each in a process of its own.

Long because every scenario runs in a process of its own, and so is a function beside its test.
"""

import asyncio
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from hvdrun.agent import processes
from hvdrun.agent.guard import Guard
from hvdrun.agent.input import InputFeed
from hvdrun.agent.output import OutputForwarder
from hvdrun.agent.sequencing import Sequencing, Streams
from hvdrun.agent.spawn import ExecSpawner, WorkerEnvironment
from hvdrun.agent.watch import Watch
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.notices import Notice, Published, SequencerFailed, SequencerOpened
from rendezvous.orders import Begin
from tests.hvdrun.agent.alone import run_alone
from tests.hvdrun.agent.jobs import JOB, ORIGIN
from tests.hvdrun.agent.watching import until

KEY = bytes(range(32))
FIRST = Assignment(0, 2, 0, 2, 0, 1)
SECOND = Assignment(1, 2, 1, 2, 0, 1)
ALONE = Assignment(0, 1, 0, 1, 0, 1)
LIMIT_SECONDS = 20.0

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
DIES = "import sys; sys.exit('No module named \\'numpy\\'')"
BABBLES = "import sys\nsys.stdout.write('x' * 200_000)\nsys.stdout.flush()\nsys.stdin.read()"
IS_MUTE = "import sys; print('hello', flush=True); sys.stdin.read()"
IS_LATE = "import os\nos.mkfifo('go')\nopen('go').read()\n" + SERVES
DIES_LATER = SERVES + "\nimport sys; sys.exit('all is lost')"


@dataclass
class Room:
    """An owner, what it posts and warns of, and the folder of its programs."""

    folder: Path
    sequencing: Sequencing
    board: list[Notice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def publish(self, generation: int = 1, *assignments: Assignment) -> None:
        """A generation is formed, with these members here."""
        members = tuple((Worker(Slot("a", numbers.rank), 1), numbers) for numbers in assignments or (FIRST, SECOND))
        self.sequencing.activate(Published(generation, members, KEY), self.board.append)

    async def told(self, count: int = 1) -> list[Notice]:
        """What was posted, once it is as much."""
        await until(lambda: len(self.board) == count)
        return self.board

    async def open(self) -> int:
        """Have a first generation served: the pid."""
        self.sequencing.expect(FIRST)
        self.sequencing.prepare(sys.executable)
        self.publish()
        assert await self.told() == [SequencerOpened(1, Endpoint("127.0.0.1", 4712))]
        return int((self.folder / "pid").read_text())

    async def heard(self, count: int) -> list[str]:
        """The lines that the program has read, once there are so many."""
        path = self.folder / "heard"
        await until(lambda: path.exists() and path.read_text().count("\n") == count)
        return path.read_text().splitlines()


class NoForker:
    """Has nothing to fork from."""

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: Streams
    ) -> int | None:
        """See `ModuleForker`."""
        del module, arguments, environment, streams
        return None


@asynccontextmanager
async def owning(program: str, limit_seconds: float = LIMIT_SECONDS, *, elastic: bool = False) -> AsyncIterator[Room]:
    """An owner on host a; in the end its process is gone with all else of the agent."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(program)
        begin = Begin(
            job=JOB,
            host="a",
            server="127.0.0.1:1",
            credential=Credential(b"", b"", b""),
            command=("true",),
            directory=name,
            environment={
                b"PATH": os.environb[b"PATH"],
                b"PYTHONPATH": os.fsencode(name),
                b"OMP_NUM_THREADS": b"7",
                b"HOROVOD_ELASTIC": b"1" if elastic else b"0",
            },
            lease_seconds=30,
            start_timeout_seconds=30,
            address="127.0.0.1",
        )
        guard = Guard(ORIGIN, folder / "nothing")
        warnings: list[str] = []
        sequencing = Sequencing(
            begin, NoForker(), guard, warnings.append, limit_seconds=limit_seconds, module="program"
        )
        spawner = ExecSpawner(begin, WorkerEnvironment(begin, folder / "agent.sock", Endpoint("127.0.0.1", 1)))
        feed = InputFeed(lambda: None)
        watch = Watch(JOB, "a", spawner, OutputForwarder(), feed=feed, guard=guard, claim=sequencing.note_end)
        watch.open()
        descriptors = count_descriptors()
        try:
            yield Room(folder, sequencing, warnings=warnings)
        finally:
            await sequencing.close()
            await watch.close()
            left = find_ours()
            guard.dismiss()
        assert left == []
        assert count_descriptors() <= descriptors


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


def read_command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def find_ours() -> list[processes.Process]:
    return [process for process in processes.running() if processes.comes_from(process, ORIGIN)]


async def serve_several_generations() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        room.sequencing.prepare(sys.executable)  # the second worker joins
        room.publish()  # told again, after a broken connection
        room.publish(2)
        assert await room.told(2) == [SequencerOpened(generation, Endpoint("127.0.0.1", 4712)) for generation in (1, 2)]
        assert await room.heard(2) == [
            f'{{"generation": {generation}, "size": 2, "key": "{KEY.hex()}"}}' for generation in (1, 2)
        ]
        assert [process.pid for process in find_ours()] == [pid]
        (process,) = find_ours()
        assert process.session == pid
        environment = (room.folder / "environment").read_text()
        assert "'OMP_NUM_THREADS': '1'" in environment
        assert KEY.hex() not in environment
        assert KEY.hex() not in read_command(pid)
        assert room.warnings == []


def test_one_process_serves_all_generations_of_a_job() -> None:
    run_alone(serve_several_generations)


async def need_none() -> None:
    async with owning(SERVES) as room:
        room.sequencing.prepare(sys.executable)  # nothing is expected here
        room.sequencing.expect(SECOND)
        room.sequencing.expect(ALONE)
        room.sequencing.prepare(sys.executable)
        room.publish(1, SECOND)
        room.publish(2, ALONE)
        assert room.sequencing._opening is None
        room.publish(3, FIRST)  # which nobody had expected to be here
        assert isinstance((await room.told())[0], SequencerOpened)


def test_without_rank_0_of_several_there_is_none() -> None:
    run_alone(need_none)


async def wait_for_a_late_one() -> None:
    async with owning(IS_LATE) as room:
        room.sequencing.expect(FIRST)
        room.sequencing.prepare(sys.executable)
        room.publish()
        await until((room.folder / "go").exists)
        assert room.board == []
        await asyncio.to_thread((room.folder / "go").write_text, "")
        assert isinstance((await room.told())[0], SequencerOpened)


def test_one_that_takes_its_time_is_waited_for() -> None:
    run_alone(wait_for_a_late_one)


async def start_one_that_dies() -> None:
    async with owning(DIES) as room:
        room.sequencing.expect(FIRST)
        room.sequencing.prepare("/usr/bin/nothing")
        room.publish()
        (failed,) = await room.told()
        assert isinstance(failed, SequencerFailed)
        assert failed.generation == 1
        assert failed.reason.startswith(
            "on a, with /usr/bin/nothing, it could not be started: No such file or directory; "
            f"with {sys.executable}, it ended with exit code 1 ("
        )
        room.publish(2)  # another generation, another try
        assert isinstance((await room.told(2))[1], SequencerFailed)
        assert room.warnings == []


def test_one_that_dies_at_once_is_explained() -> None:
    run_alone(start_one_that_dies)


async def miss_numpy() -> None:
    async with owning(DIES) as room:
        os.environ["PYTHONPATH"] = str(room.folder)
        room.publish()
        (failed,) = await room.told()
        assert failed == SequencerFailed(
            1, f"on a, with {sys.executable}, it ended with exit code 1 (No module named 'numpy'): install NumPy there"
        )


def test_what_is_missing_is_said_with_the_remedy() -> None:
    run_alone(miss_numpy)


async def fall_back() -> None:
    async with owning(SERVES) as room:
        lame = room.folder / "python"
        lame.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
        lame.chmod(lame.stat().st_mode | stat.S_IXUSR)
        os.environ["PYTHONPATH"] = str(room.folder)
        room.sequencing.expect(FIRST)
        room.sequencing.prepare(str(lame))
        room.publish()
        assert isinstance((await room.told())[0], SequencerOpened)


def test_where_the_worker_s_python_cannot_run_it_the_agent_s_own_does() -> None:
    run_alone(fall_back)


async def start_one_that_babbles() -> None:
    async with owning(BABBLES) as room:
        room.publish()
        os.environ["PYTHONPATH"] = str(room.folder)
        assert await room.told() == [SequencerFailed(1, "on a, what it writes is not a port")]
        await until(lambda: find_ours() == [])


def test_one_that_writes_garbage_is_ended_and_said() -> None:
    run_alone(start_one_that_babbles)


async def start_one_that_is_mute() -> None:
    async with owning(IS_MUTE, limit_seconds=0.5) as room:
        os.environ["PYTHONPATH"] = str(room.folder)
        room.publish()
        assert await room.told() == [SequencerFailed(1, "on a, it did not tell its port within 0.5 s")]
        await until(lambda: find_ours() == [])


def test_one_that_never_answers_is_given_up_and_ended() -> None:
    run_alone(start_one_that_is_mute)


async def kill_it() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        os.kill(pid, SIGKILL)
        await until(lambda: room.warnings != [])
        assert room.warnings == [
            "the sequencer on a, which orders the workers' collectives, is gone: it ended with signal 9"
        ]
        room.sequencing.prepare(sys.executable)
        room.publish(2)
        assert await room.told(2) == [SequencerOpened(generation, Endpoint("127.0.0.1", 4712)) for generation in (1, 2)]
        (process,) = find_ours()
        assert process.pid != pid


def test_one_that_ends_by_itself_is_told_of_and_replaced_in_the_next_generation() -> None:
    run_alone(kill_it)


async def fail_later() -> None:
    async with owning(DIES_LATER.replace("for line in sys.stdin", "for line in [sys.stdin.readline()]")) as room:
        await room.open()
        await until(lambda: room.warnings != [])
        assert room.warnings[0].endswith("is gone: it ended with exit code 1 (all is lost)")


def test_one_that_fails_later_is_told_of_with_its_last_words() -> None:
    run_alone(fail_later)


async def close_early() -> None:
    async with owning(IS_MUTE) as room:
        room.sequencing.expect(FIRST)
        room.sequencing.prepare(sys.executable)
        room.publish()
        await until(lambda: find_ours() != [])
    async with owning(SERVES) as room:
        await room.open()
        await room.sequencing.close()
        room.sequencing.prepare(sys.executable)
        room.publish(2)
        assert len(room.board) == 1


def test_nothing_is_left_of_one_that_was_being_started_or_serves() -> None:
    run_alone(close_early)


async def keep_one_ready() -> None:
    async with owning(SERVES, elastic=True) as room:
        room.sequencing.expect(SECOND)  # rank 0 is elsewhere, for now
        room.sequencing.prepare(sys.executable)
        await until((room.folder / "pid").exists)
        room.publish(2, FIRST)
        assert await room.told() == [SequencerOpened(2, Endpoint("127.0.0.1", 4712))]


def test_in_an_elastic_job_one_is_ready_on_every_host() -> None:
    run_alone(keep_one_ready)


async def replace_it_at_once() -> None:
    async with owning(SERVES, elastic=True) as room:
        pid = await room.open()
        await room.heard(1)
        (room.folder / "pid").unlink()
        os.kill(pid, SIGKILL)
        await until((room.folder / "pid").exists)  # before anybody asks for it
        room.publish(2)
        assert await room.told(2) == [SequencerOpened(generation, Endpoint("127.0.0.1", 4712)) for generation in (1, 2)]
        await room.heard(2)


def test_in_an_elastic_job_one_that_dies_is_replaced_before_the_next_generation() -> None:
    run_alone(replace_it_at_once)


async def stop_it(*, elastic: bool) -> tuple[list[int], list[str]]:
    """Stop it, and have that told twice: the pids, before and after, and what the user was told."""
    async with owning(SERVES, elastic=elastic) as room:
        pid = await room.open()
        await room.heard(1)
        os.kill(pid, SIGSTOP)
        assert room.sequencing.list_living() == ((pid, "its process"),)
        for _ in range(2):
            room.sequencing.put_down(pid, "its process was stopped")
        room.sequencing.put_down(pid + 1, "nobody has started it")
        await until(lambda: room.warnings != [])
        if elastic:
            room.publish(2)
            await room.told(2)
            await room.heard(2)
        return [pid, int((room.folder / "pid").read_text())], room.warnings


async def stop_both() -> None:
    name = "the sequencer on a, which orders the workers' collectives,"
    pids, warnings = await stop_it(elastic=True)
    assert pids[0] != pids[1]
    assert warnings == [f"{name} is gone: its process was stopped"]
    pids, warnings = await stop_it(elastic=False)
    assert pids[0] == pids[1]
    remedy = f"the workers wait until it goes on (kill -CONT {pids[0]})"
    assert warnings == [f"{name} stands still: its process was stopped; {remedy}"]


def test_one_that_stands_still_is_replaced_in_an_elastic_job_and_said_once_in_others() -> None:
    run_alone(stop_both)


async def find_it_dead() -> None:
    async with owning(SERVES) as room:
        pid = await room.open()
        os.kill(pid, SIGKILL)
        while not is_dead(pid):  # nothing else runs meanwhile, so that its end has not been heard of
            pass
        room.publish(2)
        assert await room.told(2) == [SequencerOpened(generation, Endpoint("127.0.0.1", 4712)) for generation in (1, 2)]
        assert pid not in {process.pid for process in find_ours()}


def test_one_that_turns_out_to_be_dead_is_replaced_for_the_same_generation() -> None:
    run_alone(find_it_dead)


def is_dead(pid: int) -> bool:
    process = processes.look(pid)
    return process is None or process.is_dead
