"""The agent's side of a real forkserver; each test in a process of its own, which reaps as an agent does."""

import asyncio
import ctypes
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvdrun.agent.prefork import Forkserver, ForkserverError
from hvdrun.errors import LaunchError
from rendezvous.forking import ForkRequest
from tests.hvdrun.agent.alone import run_alone

PR_SET_CHILD_SUBREAPER = 36
LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Room:
    """A forkserver for `python script.py` and the folder that it is in."""

    forkserver: Forkserver
    folder: Path

    async def fork(
        self, *words: str, environment: dict[str, str] | None = None, prepare: Callable[[int], None] | None = None
    ) -> tuple[int, bytes]:
        """Fork a worker: how it ended, and what it wrote."""
        null = os.open(os.devnull, os.O_RDWR)
        reader, writer = os.pipe()
        request = ForkRequest(
            number=self.forkserver.next_number(),
            executable=sys.executable,
            arguments=("python", "script.py", *words),
            directory=str(self.folder),
            environment=environment or dict(os.environ),
            threads=1,
        )
        try:
            forking = self.forkserver.fork(request, (null, writer, writer), prepare)
            pid = await asyncio.wait_for(forking, LIMIT_SECONDS)
        finally:
            os.close(null)
            os.close(writer)
        with os.fdopen(reader, "rb") as output:
            text = await asyncio.to_thread(output.read)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        return os.waitstatus_to_exitcode(status), text


@asynccontextmanager
async def forking(script: str, *, preload: str = "", modules: tuple[str, ...] = ()) -> AsyncIterator[Room]:
    """A forkserver; `preload` is what its sitecustomize does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    forkserver = Forkserver()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(script, encoding="utf-8")
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(preload, encoding="utf-8")
        environment = {**os.environb, b"PYTHONPATH": os.fsencode(folder / "site")}
        forkserver.open(sys.executable, ("python", "script.py", "x"), name, environment, modules)
        try:
            yield Room(forkserver, folder)
        finally:
            await forkserver.close()
            await asyncio.to_thread(os.waitpid, forkserver.pid, 0)


async def prepared() -> None:
    pids = []

    def prepare(pid: int) -> None:
        pids.append(pid)
        os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})

    script = "import os; print(os.getpid(), len(os.sched_getaffinity(0)))"
    async with forking(script) as room:
        code, text = await room.fork(prepare=prepare)
    assert (code, text) == (0, f"{pids[0]} 1\n".encode())


def test_a_worker_is_prepared_before_it_runs_anything() -> None:
    run_alone(prepared)


async def unprepared() -> None:
    pids = []

    def refuse(pid: int) -> None:
        pids.append(pid)
        raise LaunchError("no.")

    async with forking("open('ran', 'w')") as room:
        with pytest.raises(LaunchError):
            await room.fork(prepare=refuse)
        await asyncio.to_thread(os.waitpid, pids[0], 0)
        assert not (room.folder / "ran").exists()


def test_a_worker_that_cannot_be_prepared_never_runs() -> None:
    run_alone(unprepared)


async def many() -> None:
    async with forking("import sys; print(sys.argv[1]); sys.exit(int(sys.argv[1]))") as room:
        ends = await asyncio.gather(*(room.fork(str(number)) for number in range(16)))
    assert ends == [(number, f"{number}\n".encode()) for number in range(16)]


def test_many_are_forked_at_once_and_none_is_mistaken_for_another() -> None:
    run_alone(many)


async def odd_words() -> None:
    show = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]], os.environb[b'ODD'], len(os.environ))"
    async with forking(show) as room:
        code, text = await room.fork("ä", "\udcff", "", "x" * 100_000, environment={"ODD": "\udcfe\n"})
    assert (code, text.replace(b"x" * 100_000, b"x")) == (0, b"[b'\\xc3\\xa4', b'\\xff', b'', b'x'] b'\\xfe\\n' 1\n")


def test_words_and_variables_of_any_bytes_and_length_arrive() -> None:
    run_alone(odd_words)


async def fails(room: Room) -> str:
    with pytest.raises(ForkserverError) as caught:
        await room.fork()
    return str(caught.value)


async def objecting() -> None:
    async with forking("a b") as room:
        assert [*await asyncio.gather(fails(room), fails(room))] == ["the script cannot be compiled: SyntaxError"] * 2


def test_an_objection_is_told_to_everybody() -> None:
    run_alone(objecting)


async def failing() -> None:
    async with forking("", preload="import os; os.write(2, b'much\\nno luck\\n'); os._exit(1)") as room:
        assert [*await asyncio.gather(fails(room), fails(room))] == ["the forkserver ended: no luck"] * 2
    async with forking("", modules=("nowhere",)) as room:
        assert await fails(room) == "the forkserver ended: ModuleNotFoundError: No module named 'nowhere'"


def test_its_last_words_are_told_when_it_ends_early() -> None:
    run_alone(failing)


async def killed() -> None:
    async with forking("print('alive')") as room:
        assert await room.fork() == (0, b"alive\n")
        os.kill(room.forkserver.pid, 9)
        assert [*await asyncio.gather(fails(room), fails(room))] == ["the forkserver ended"] * 2


def test_one_that_was_killed_is_noticed_by_the_next_who_asks() -> None:
    run_alone(killed)


# Killed by itself when it has forked and nobody knows of it yet.
DIES_AT_FORK = "import os; own = os.getpid(); os.register_at_fork(after_in_parent=lambda: os.kill(own, 9))"


async def killed_while_forking() -> None:
    async with forking("open('ran', 'w')", preload=DIES_AT_FORK) as room:
        assert await fails(room) == "the forkserver ended"
        await asyncio.to_thread(reap_all_but, room.forkserver.pid)
        assert not (room.folder / "ran").exists()


def reap_all_but(kept: int) -> None:
    """Wait for the end of every child but one; without the gate, the worker that nobody knows of would run."""
    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    while others := {int(word) for word in children.read_text().split()} - {kept}:
        os.waitpid(others.pop(), 0)


def test_a_worker_whose_forkserver_was_killed_before_it_told_of_it_never_runs() -> None:
    run_alone(killed_while_forking)


async def closed() -> None:
    async with forking("", preload="import time; time.sleep(600)") as room:
        waiting = [asyncio.create_task(fails(room)) for _ in range(2)]
        await asyncio.sleep(0)
        os.kill(room.forkserver.pid, 9)
        await room.forkserver.close()
        assert await asyncio.gather(*waiting) == ["the forkserver ended"] * 2
        assert await fails(room) == "the forkserver ended"


def test_whoever_waits_when_it_is_closed_is_told() -> None:
    run_alone(closed)


async def talkative() -> None:
    async with forking("print('x')", preload="import sys; print('y' * 1_000_000)") as room:
        code, text = await room.fork()
    assert (code, len(text)) == (0, 1_000_003)


def test_a_preload_that_says_much_holds_nothing_up() -> None:
    run_alone(talkative)


def test_an_interpreter_that_cannot_be_started_is_an_error_of_the_system(tmp_path: Path) -> None:
    async def open_it() -> None:
        forkserver = Forkserver()
        try:
            forkserver.open(str(tmp_path / "nowhere"), ("python", "x"), str(tmp_path), {}, ())
        finally:
            await forkserver.close()

    with pytest.raises(FileNotFoundError):
        asyncio.run(open_it())
