"""Whether the workers' torch has a backend is asked once, before any of them is started.

Programs stand in the place of the one that is asked.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hvdrun.agent.backend_check import CheckedSpawner
from hvdrun.agent.spawn import Spawned
from hvdrun.errors import BackendNotAskedError, BackendRefusedError, CommandNotFoundError
from hvdrun.processes.child import StandardStreams
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Launch
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import ORIGIN, make_begin, make_launches
from tests.hvdrun.agent.watching import find_ours
from tests.waiting import LIMIT_SECONDS, happen

LAUNCHES = make_launches(2)
NOTES = """
import os, pathlib, sys
with open("asked", "a") as file: file.write(f"{os.getpid()} {sys.argv[1:]} {os.environ['HVD_SLOT']}\\n")
print("an import has something to say")
"""
AGREES = NOTES + 'print(\'{"objection": ""}\')'
OBJECTS = NOTES + 'print(\'{"objection": "torch has none; take another"}\')'
DIES = NOTES + "sys.exit('warning\\nNo module named torch')"
IS_MUTE = NOTES + "os.mkfifo('go'); open('go').read()"


@dataclass
class Spawner:
    """Starts nothing, and notes what it was asked to start; forks on order."""

    forks: bool = False
    expects_init: bool = False
    spawned: list[Launch] = field(default_factory=list)
    is_closed: bool = False

    async def prepare(self) -> None:
        """See `Spawner`."""

    async def spawn(self, launch: Launch) -> Spawned:
        """See `Spawner`."""
        self.spawned.append(launch)
        return Spawned(0, None, -1, -1)

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: StandardStreams
    ) -> int | None:
        """Fork, in place of an interpreter that has imported torch."""
        assert (module, arguments) == ("program", ("ucc",))
        assert environment[b"HVD_BACKEND"] == b"ucc"
        if not self.forks:
            return None
        pid = os.fork()
        if pid == 0:
            os.write(streams[1], b'{"objection": "said by a fork"}\n')
            os._exit(0)
        return pid

    async def close(self) -> None:
        """See `Spawner`."""
        self.is_closed = True


@dataclass
class Room:
    """A checked spawner, what stands behind it, and the folder where the program leaves what it was asked."""

    checked: CheckedSpawner
    spawner: Spawner
    folder: Path

    async def spawn_all(self) -> list[object]:
        """The result or the error of each worker's start."""
        starts = (self.checked.spawn(launch) for launch in LAUNCHES)
        return list(await asyncio.wait_for(asyncio.gather(*starts, return_exceptions=True), LIMIT_SECONDS))

    def asked(self) -> list[str]:
        """The questions, a line each."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@asynccontextmanager
async def checking(
    program: str, *command: str, wish: str = "ucc", limit_seconds: float = LIMIT_SECONDS, forks: bool = False
) -> AsyncIterator[Room]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(program)
        words = command or (sys.executable, "-u", "x.py")
        begin = make_begin(folder, *words, PATH="/bin", PYTHONPATH=name, HVD_BACKEND=wish)
        watchdog = Watchdog(ORIGIN, [folder / "nothing"])
        watchdog.start()
        spawner = Spawner(forks)
        checked = CheckedSpawner(
            replace(begin, start_timeout_seconds=limit_seconds), spawner, watchdog, module="program"
        )
        descriptors = len(list_settled_descriptors())
        try:
            yield Room(checked, spawner, folder)
        finally:
            await checked.close()
            assert spawner.is_closed
            await happen(lambda: len(list_descriptors()) <= descriptors, "the close of what was opened")
            watchdog.end()


@alone
async def test_workers_are_started_once_their_python_has_agreed() -> None:
    async with checking(AGREES) as room:
        await room.spawn_all()
        assert sorted(room.spawner.spawned, key=str) == sorted(LAUNCHES, key=str)
        (line,) = room.asked()
        assert line.partition(" ")[2] == "['ucc'] a:0"


WISHED = "'ucc', given with --backend or $HVD_BACKEND"
REFUSED = f"with {sys.executable}: torch has none; take another."
REFUSALS = [
    (OBJECTS, False, BackendRefusedError, (WISHED, REFUSED)),
    (DIES, False, BackendNotAskedError, (WISHED, "No module named torch; check that this Python")),
    (DIES, True, BackendRefusedError, ("said by a fork",)),  # a fork is asked where one can be had
]


@pytest.mark.parametrize(("program", "forks", "error", "words"), REFUSALS)
@alone
async def test_a_refused_backend_is_reported_for_every_worker_and_no_worker_is_started(
    program: str, *, forks: bool, error: type[Exception], words: tuple[str, ...]
) -> None:
    async with checking(program, forks=forks) as room:
        errors = await room.spawn_all()
        assert [type(found) for found in errors] == [error] * 2
        assert [word for word in words if word not in str(errors[0])] == []
        assert (room.spawner.spawned, len(room.asked())) == ([], 0 if forks else 1)


@alone
async def test_a_check_without_an_answer_within_the_limit_is_ended() -> None:
    async with checking(IS_MUTE, limit_seconds=0.5) as room:
        errors = await room.spawn_all()
        assert ["it did not answer within 0.5 s" in str(error) for error in errors] == [True] * 2
        await happen(lambda: find_ours() == [])


@alone
async def test_a_check_without_an_answer_is_ended_when_the_agent_closes() -> None:
    async with checking(IS_MUTE) as room:
        starting = asyncio.create_task(room.spawn_all())
        await happen(lambda: len(room.asked()) == 1)
        await room.checked.close()
        assert {type(error) for error in await starting} == {asyncio.CancelledError}
        await happen(lambda: find_ours() == [])


@alone
async def test_no_interpreter_is_started_without_need_nor_for_a_command_without_python() -> None:
    python = ("python", "x.py")
    for wish, command in [("ucc", ("sh", "-c", "python x.py")), ("gloo", python), ("", python), ("foo", python)]:
        async with checking(OBJECTS, *command, wish=wish) as room:
            await room.spawn_all()
            assert (len(room.spawner.spawned), room.asked()) == (2, [])


@alone
async def test_a_missing_python_is_reported_as_without_a_backend() -> None:
    async with checking(OBJECTS, "python3.99", "x.py") as room:
        errors = await room.spawn_all()
        assert [type(error) for error in errors] == [CommandNotFoundError] * 2
