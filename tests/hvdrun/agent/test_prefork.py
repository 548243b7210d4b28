"""The agent's side of a real forkserver."""

import asyncio
import gc
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvdrun.agent.prefork import Forkserver, ForkserverError
from hvdrun.errors import LaunchError
from rendezvous.wire.processes import Forked, ForkRequest, encode
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.sleepers import files_left
from tests.waiting import happen, in_loop


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
            executable=sys.executable,
            arguments=("python", "script.py", *words),
            directory=str(self.folder),
            environment=environment or dict(os.environ),
            threads=1,
        )
        try:
            pid = await self.forkserver.fork(request, (null, writer, writer), prepare)
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


@alone
async def test_a_worker_is_prepared_before_it_runs_anything() -> None:
    pids = []

    def prepare(pid: int) -> None:
        pids.append(pid)
        os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})

    script = "import os; print(os.getpid(), len(os.sched_getaffinity(0)))"
    async with forking(script) as room:
        code, text = await room.fork(prepare=prepare)
    assert (code, text) == (0, f"{pids[0]} 1\n".encode())


@alone
async def test_a_worker_that_cannot_be_prepared_never_runs() -> None:
    pids = []

    def refuse(pid: int) -> None:
        pids.append(pid)
        raise LaunchError("no.")

    async with forking("open('ran', 'w')") as room:
        with pytest.raises(LaunchError):
            await room.fork(prepare=refuse)
        await asyncio.to_thread(os.waitpid, pids[0], 0)
        assert not (room.folder / "ran").exists()


@alone
async def test_words_and_variables_of_any_bytes_and_length_arrive() -> None:
    show = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]], os.environb[b'ODD'], len(os.environ))"
    async with forking(show) as room:
        code, text = await room.fork("ä", "\udcff", "", "x" * 100_000, environment={"ODD": "\udcfe\n"})
    assert (code, text.replace(b"x" * 100_000, b"x")) == (0, b"[b'\\xc3\\xa4', b'\\xff', b'', b'x'] b'\\xfe\\n' 1\n")


async def fail(room: Room) -> str:
    """The answer to all who ask at the same time."""
    errors = await asyncio.gather(room.fork(), room.fork(), return_exceptions=True)
    assert {type(error) for error in errors} == {ForkserverError}
    (reported,) = {str(error) for error in errors}
    return reported


@pytest.mark.parametrize(
    ("script", "preload", "modules", "reported"),
    [
        ("a b", "", (), "the script cannot be compiled: SyntaxError"),
        ("", "import os; os.write(2, b'much\\nno luck\\n'); os._exit(1)", (), "the forkserver ended: no luck"),
        ("", "", ("nowhere",), "the forkserver ended: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
@alone
async def test_each_caller_gets_the_reason_why_nothing_can_be_forked(
    script: str, preload: str, modules: tuple[str, ...], reported: str
) -> None:
    async with forking(script, preload=preload, modules=modules) as room:
        assert await fail(room) == reported


# Killed by itself when it has forked and is unknown yet.
DIES_AT_FORK = "import os; own = os.getpid(); os.register_at_fork(after_in_parent=lambda: os.kill(own, 9))"


@alone
async def test_a_worker_whose_forkserver_was_killed_before_its_answer_never_runs() -> None:
    async with forking("open('ran', 'w')", preload=DIES_AT_FORK) as room:
        with pytest.raises(ForkserverError, match=r"^the forkserver ended$"):
            await room.fork()
        await asyncio.to_thread(reap_all_but, room.forkserver.pid)
        assert not (room.folder / "ran").exists()


def reap_all_but(kept: int) -> None:
    """Wait for the end of every child but one; without the gate, the unknown worker would run."""
    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    while others := {int(word) for word in children.read_text().split()} - {kept}:
        os.waitpid(others.pop(), 0)


@alone
async def test_a_caller_that_waits_for_a_closed_forkserver_gets_an_error() -> None:
    async with forking("", preload="import time; time.sleep(600)") as room:
        waiting = asyncio.create_task(fail(room))
        await asyncio.sleep(0)
        os.kill(room.forkserver.pid, 9)
        await room.forkserver.close()
        assert await waiting == "the forkserver ended"
        assert await fail(room) == "the forkserver ended"


@in_loop
async def test_an_answer_to_a_caller_that_was_just_cancelled_is_dropped() -> None:
    forkserver = Forkserver()
    forkserver._answers = {1: asyncio.get_running_loop().create_future(), 2: asyncio.get_running_loop().create_future()}
    forkserver._answers[1].cancel()  # its caller has not run since
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)  # noqa: FBT003 - socket's signature
        with theirs:
            theirs.sendall(encode(Forked(1, 101)) + encode(Forked(2, 102)))
        await forkserver._read(ours)
    assert forkserver._answers[2].result() == 102


@in_loop
async def test_a_request_that_a_dead_forkserver_does_not_take_leaves_no_error_behind() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    forkserver = Forkserver()
    forkserver._ready.set_result("")
    forkserver._socket, theirs = socket.socketpair()
    forkserver._socket.setblocking(False)  # noqa: FBT003 - socket's signature
    theirs.close()
    async with forkserver._sending:  # another request is sent meanwhile
        waiting = asyncio.create_task(forkserver.fork(ForkRequest("python", ("python",), "/", {}, 1), (0, 1, 2)))
        await happen(lambda: bool(forkserver._answers))
        await forkserver._read(forkserver._socket)
    await asyncio.wait([waiting])
    assert isinstance(waiting.exception(), ForkserverError)
    await forkserver.close()
    del waiting
    gc.collect()
    assert reported == []


@alone
async def test_an_import_that_prints_much_does_not_block_the_forkserver() -> None:
    async with forking("print('x')", preload="import sys; print('y' * 1_000_000)") as room:
        code, text = await room.fork()
    assert (code, len(text)) == (0, 1_000_003)


@pytest.mark.parametrize("count", range(5))
@in_loop
async def test_where_files_run_out_no_descriptor_is_left_open(count: int) -> None:
    with files_left(count), pytest.raises(OSError, match="Too many"):
        Forkserver().open(sys.executable, (sys.executable,), "/", {}, ())
