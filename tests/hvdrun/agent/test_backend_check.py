"""Whether the workers' torch has a backend is asked once, before any of them is started.

Programs stand in the place of the one that is asked; each scenario runs in a process of its own.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hvdrun.agent import processes
from hvdrun.agent.backend_check import CheckedSpawner
from hvdrun.agent.guard import Guard
from hvdrun.agent.sequencing import Streams
from hvdrun.agent.spawn import Spawned
from hvdrun.errors import BackendNotAskedError, BackendRefusedError, CommandNotFoundError
from rendezvous.core.effects import Launch
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.orders import Begin
from tests.hvdrun.agent.alone import run_alone
from tests.hvdrun.agent.jobs import JOB, ORIGIN
from tests.hvdrun.agent.watching import until

LIMIT_SECONDS = 20.0
LAUNCHES = tuple(Launch(Worker(Slot("a", rank), 1), Assignment(rank, 2, rank, 2, 0, 1), "placed") for rank in range(2))
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
    """Starts nothing, and tells what it was asked to; forks what it is told to fork."""

    forks: bool = False
    spawned: list[Launch] = field(default_factory=list)
    is_closed: bool = False

    async def prepare(self) -> None:
        """See `Spawner`."""

    async def spawn(self, launch: Launch) -> Spawned:
        """See `Spawner`."""
        self.spawned.append(launch)
        return Spawned(0, None, -1, -1)

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: Streams
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
    guard: Guard
    folder: Path

    async def spawn_all(self) -> list[object]:
        """The result or the error of each worker's start."""
        starts = (self.checked.spawn(launch) for launch in LAUNCHES)
        return list(await asyncio.wait_for(asyncio.gather(*starts, return_exceptions=True), LIMIT_SECONDS))

    def asked(self) -> list[str]:
        """Who was asked what, a line each."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@asynccontextmanager
async def checking(
    program: str,
    *,
    wish: str = "ucc",
    command: tuple[str, ...] = (sys.executable, "-u", "x.py"),
    limit_seconds: float = LIMIT_SECONDS,
    forks: bool = False,
) -> AsyncIterator[Room]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(program)
        begin = Begin(
            job=JOB,
            host="a",
            server="127.0.0.1:1",
            credential=Credential(b"", b"", b""),
            command=command,
            directory=name,
            environment={b"PATH": b"/bin", b"PYTHONPATH": os.fsencode(name), b"HVD_BACKEND": wish.encode()},
            lease_seconds=30,
            start_timeout_seconds=limit_seconds,
            address="127.0.0.1",
        )
        guard = Guard(ORIGIN, folder / "nothing")
        spawner = Spawner(forks)
        checked = CheckedSpawner(begin, spawner, guard, module="program")
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
        try:
            yield Room(checked, spawner, guard, folder)
        finally:
            await checked.close()
            assert spawner.is_closed
            await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)  # noqa: PTH208 - a count
            guard.dismiss()


async def agrees() -> None:
    async with checking(AGREES) as room:
        await room.spawn_all()
        assert sorted(room.spawner.spawned, key=str) == sorted(LAUNCHES, key=str)
        (line,) = room.asked()
        assert line.partition(" ")[2] == "['ucc'] a:0"


def test_workers_are_started_once_their_python_has_agreed() -> None:
    run_alone(agrees)


async def objects() -> None:
    async with checking(OBJECTS) as room:
        errors = await room.spawn_all()
        assert [type(error) for error in errors] == [BackendRefusedError] * 2
        assert "'ucc', given with --backend or $HVD_BACKEND" in str(errors[0])
        assert str(errors[0]).endswith(f"with {sys.executable}: torch has none; take another.")
        assert (room.spawner.spawned, len(room.asked())) == ([], 1)


def test_an_objection_is_told_for_every_worker_and_none_is_started() -> None:
    run_alone(objects)


async def is_forked() -> None:
    async with checking(DIES, forks=True) as room:
        errors = await room.spawn_all()
        assert ["said by a fork" in str(error) for error in errors] == [True] * 2
        assert room.asked() == []


def test_a_fork_is_asked_where_one_can_be_had() -> None:
    run_alone(is_forked)


async def dies() -> None:
    async with checking(DIES) as room:
        errors = await room.spawn_all()
        assert [type(error) for error in errors] == [BackendNotAskedError] * 2
        assert "did not say: No module named torch; look whether" in str(errors[0])
        assert room.spawner.spawned == []


def test_a_python_that_cannot_answer_is_refused_with_its_last_words() -> None:
    run_alone(dies)


async def is_mute() -> None:
    async with checking(IS_MUTE, limit_seconds=1.0) as room:
        errors = await room.spawn_all()
        assert ["it did not answer within 1 s" in str(error) for error in errors] == [True] * 2
        await until(lambda: is_gone(room))


async def closes() -> None:
    async with checking(IS_MUTE) as room:
        starting = asyncio.create_task(room.spawn_all())
        await until(lambda: len(room.asked()) == 1)
        await room.checked.close()
        assert {type(error) for error in await starting} == {asyncio.CancelledError}
        await until(lambda: is_gone(room))


def is_gone(room: Room) -> bool:
    """The process that was asked has ended."""
    process = processes.look(int(room.asked()[0].partition(" ")[0]))
    return process is None or process.state == "Z"


@pytest.mark.parametrize("scenario", [is_mute, closes])
def test_what_does_not_answer_is_ended(scenario: object) -> None:
    run_alone(scenario)  # type: ignore[arg-type]  # both are scenarios


async def asks_nobody() -> None:
    for wish, command in [
        ("ucc", ("sh", "-c", "python x.py")),
        ("gloo", ("python", "x.py")),
        ("", ("python", "x.py")),
        ("foo", ("python", "x.py")),
    ]:
        async with checking(OBJECTS, wish=wish, command=command) as room:
            await room.spawn_all()
            assert (len(room.spawner.spawned), room.asked()) == (2, [])


def test_nobody_is_asked_without_need_nor_where_no_python_is_named() -> None:
    run_alone(asks_nobody)


async def has_no_python() -> None:
    async with checking(OBJECTS, command=("python3.99", "x.py")) as room:
        errors = await room.spawn_all()
        assert [type(error) for error in errors] == [CommandNotFoundError] * 2


def test_a_python_that_is_not_there_is_what_it_is_without_a_backend() -> None:
    run_alone(has_no_python)
