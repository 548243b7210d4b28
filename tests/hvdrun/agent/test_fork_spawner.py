"""Workers that are forked where that is possible, and executed with a reason where it is not."""

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hvdrun.agent.fork_spawner import ForkSpawner
from hvdrun.agent.spawn import Spawned, WorkerEnvironment
from hvdrun.errors import CommandNotFoundError
from rendezvous.core.effects import Launch
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.orders import Begin
from tests.hvdrun.agent.alone import run_alone
from tests.hvdrun.agent.jobs import JOB

PR_SET_CHILD_SUBREAPER = 36
LIMIT_SECONDS = 20.0
LAUNCHES = tuple(Launch(Worker(Slot("a", rank), 1), Assignment(rank, 4, rank, 4, 0, 1), "placed") for rank in range(4))
SHOW = """
import os, sys
is_home = os.getcwd() == os.path.dirname(__file__)
print(os.environ["RANK"], os.environ.get("NAME"), sys.argv[1:], is_home, "serve" in str(sys.orig_argv))
"""


@dataclass
class Room:
    """A spawner, what it has remarked, and the folder that it works in."""

    spawner: ForkSpawner
    remarks: list[str]
    folder: Path

    async def run(self, launch: Launch = LAUNCHES[0]) -> str:
        """Spawn a worker that ends well: what it wrote."""
        return await read(await asyncio.wait_for(self.spawner.spawn(launch), LIMIT_SECONDS))

    def ways(self) -> list[str]:
        """How the workers were started, without their pids."""
        return [remark.partition(", ")[2] for remark in self.remarks]


async def read(spawned: Spawned) -> str:
    os.close(spawned.stderr)
    with os.fdopen(spawned.stdout, encoding="utf-8") as output:
        text = await asyncio.to_thread(output.read)
    _, status = await asyncio.to_thread(os.waitpid, spawned.pid, 0)
    assert status == 0, text
    return text


def describe(folder: Path, command: tuple[str, ...]) -> Begin:
    """A job of this command on this host."""
    site = folder / "site"
    return Begin(
        job=JOB,
        host="a",
        server="127.0.0.1:1",
        credential=Credential(b"", b"", b""),
        command=command,
        directory=str(folder),
        environment={
            b"PATH": os.fsencode(Path(sys.executable).parent),
            b"NAME": "ä".encode(),
            b"PYTHONPATH": os.fsencode(site),
        },
        lease_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
    )


@asynccontextmanager
async def spawning(
    *command: str,
    script: str = SHOW,
    preload: str = "",
    prefork: bool = True,
    environment: dict[bytes, bytes] | None = None,
) -> AsyncIterator[Room]:
    """A spawner for a command; `preload` is what the interpreter's sitecustomize does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(script, encoding="utf-8")
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(preload, encoding="utf-8")
        begin = replace(describe(folder, command or ("python", "script.py", "a b")), prefork=prefork)
        begin = replace(begin, environment={**begin.environment, **(environment or {})})
        remarks: list[str] = []
        around = WorkerEnvironment(begin, folder / "agent.sock", Endpoint("127.0.0.1", 29500))
        spawner = ForkSpawner(begin, around, remarks.append)
        try:
            yield Room(spawner, remarks, folder)
        finally:
            await spawner.close()


async def both_ways() -> None:
    for prefork, way in ((True, "forked"), (False, "executed (--no-prefork)")):
        async with spawning(prefork=prefork) as room:
            texts = await asyncio.gather(*map(room.run, LAUNCHES))
            assert texts == [f"{rank} ä ['a b'] True False\n" for rank in range(4)]
            assert room.ways() == [way] * 4
            assert room.remarks[0].startswith("a:")


def test_forked_and_executed_workers_have_the_same_words_variables_and_place() -> None:
    run_alone(both_ways)


async def fork_a_module(room: Room) -> str | None:
    """What a module of this name writes; None when nothing can be forked."""
    reader, writer = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    with os.fdopen(reader, encoding="utf-8") as output:
        try:
            pid = await room.spawner.fork_module("show", ("word",), {b"NAME": b"value"}, (nothing, writer, writer))
        finally:
            os.close(writer)
            os.close(nothing)
        if pid is None:
            return None
        text = await asyncio.to_thread(output.read)
        await asyncio.to_thread(os.waitpid, pid, 0)
        return text


SHOW_MODULE = """
import os, sys
is_leader, descriptors = os.getsid(0) == os.getpid(), os.listdir("/proc/self/fd")
print(__name__, sys.argv[1:], dict(os.environ), os.getcwd(), is_leader, len(descriptors))
"""


async def modules() -> None:
    for prefork in (True, False):
        async with spawning(prefork=prefork) as room:
            (room.folder / "site/show.py").write_text(SHOW_MODULE)
            expected = "__main__ ['word'] {'NAME': 'value'} / True 4\n" if prefork else None  # 3 and that of the look
            assert await fork_a_module(room) == expected


def test_a_module_of_ours_is_forked_where_workers_are() -> None:
    run_alone(modules)


REASONS = [
    (("python", "-u", "script.py"), "pass", {}, "not a plain Python command"),
    (("sh", "-c", "exit 0"), "pass", {}, "not a plain Python command"),
    (("python", "script.py"), "pass", {b"MKL_NUM_THREADS": b"2"}, "MKL_NUM_THREADS is set"),
    (
        ("python", "script.py"),
        "'OMP_PROC_BIND'",
        {},
        "the script names OMP_PROC_BIND, which must be set before the imports",
    ),
    (
        ("python", "-m", "script"),
        "'LD_PRELOAD'",
        {},
        "the script names LD_PRELOAD, which must be set before the imports",
    ),
]


async def reasons() -> None:
    for command, script, environment, reason in REASONS:
        added = {b"PATH": os.environb[b"PATH"], **environment}
        async with spawning(*command, script=script, environment=added) as room:
            assert await room.run() == ""
            assert room.ways() == [f"executed ({reason})"]


def test_a_command_that_is_not_forked_is_executed_with_the_reason() -> None:
    run_alone(reasons)


# Killed by itself right after its second fork, which nobody has heard of yet.
DIES = """
import os, sys
forks, own = [], os.getpid()
def count():
    forks.append(None)
    if os.getpid() == own and len(forks) == 2:
        os.kill(own, 9)
if "serve" in sys.orig_argv[-1]:
    os.register_at_fork(after_in_parent=count)
"""


async def dying() -> None:
    async with spawning(script="import os; print(os.environ['RANK'])", preload=DIES) as room:
        texts = await asyncio.gather(*map(room.run, LAUNCHES))
        assert texts == [f"{rank}\n" for rank in range(4)]
        assert sorted(room.ways()) == [*["executed (the forkserver ended)"] * 3, "forked"]
        assert await room.run() == "0\n"


def test_workers_are_executed_when_the_forkserver_dies_among_them() -> None:
    run_alone(dying)


async def stopped() -> None:
    async with spawning(script="print('alive')") as room:
        assert await room.run() == "alive\n"
        ((pid, name),) = room.spawner.list_living()
        assert name == "the forkserver"
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(room.run())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        room.spawner.put_down(pid + 1, "nobody has started it")
        room.spawner.put_down(pid, "the forkserver was stopped")
        assert await waiting == "alive\n"
        assert room.ways() == ["forked", "executed (the forkserver was stopped)"]
        assert room.spawner.list_living() == ()


def test_workers_are_executed_when_the_forkserver_stands_still_and_is_put_down() -> None:
    run_alone(stopped)


async def threads() -> None:
    script = "import numpy, threadpoolctl; print([pool['num_threads'] for pool in threadpoolctl.threadpool_info()])"
    preload = "import sys\nif 'serve' in sys.orig_argv[-1]: import numpy"
    expected = {"1": 1, "2": min(2, len(os.sched_getaffinity(0))), None: len(os.sched_getaffinity(0))}
    for wanted, count in expected.items():
        added = {} if wanted is None else {b"OMP_NUM_THREADS": wanted.encode()}
        async with spawning(script=script, preload=preload, environment=added) as room:
            assert await room.run() == f"[{count}]\n"
            assert room.ways() == ["forked"]


def test_as_many_threads_are_used_as_the_environment_says() -> None:
    run_alone(threads)


async def missing() -> None:
    async with spawning("python9", "script.py") as room:
        with pytest.raises(CommandNotFoundError):
            await room.spawner.spawn(LAUNCHES[0])
    async with spawning("./python3", "script.py") as room:
        with pytest.raises(CommandNotFoundError):
            await room.spawner.spawn(LAUNCHES[0])
        assert room.remarks == []


def test_an_interpreter_that_does_not_exist_is_said_as_for_any_command() -> None:
    run_alone(missing)
