"""Workers that are forked where that is possible, and executed with a reason where it is not."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hvdrun.agent.fork_spawner import ForkSpawner
from hvdrun.agent.spawn import Spawned, WorkerEnvironment
from hvdrun.errors import CommandNotFoundError
from rendezvous.core.messages import Launch
from rendezvous.core.model import Round
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import make_begin, make_launches

LAUNCHES = make_launches(4)
SHOW = """
import os, sys
is_home = os.getcwd() == os.path.dirname(__file__)
print(os.environ["HOROVOD_RANK"], os.environ.get("NAME"), sys.argv[1:], is_home, "forkserver" in str(sys.orig_argv))
"""


@dataclass
class Room:
    """A spawner, what it has remarked, and the folder that it works in."""

    spawner: ForkSpawner
    remarks: list[str]
    folder: Path

    async def run(self, launch: Launch = LAUNCHES[0]) -> str:
        """Spawn a worker that ends well: what it wrote."""
        return await read(await self.spawner.spawn(launch))

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


@asynccontextmanager
async def spawning(
    *command: str, script: str = SHOW, preload: str = "", prefork: bool = True, variables: Mapping[str, str] = {}
) -> AsyncIterator[Room]:
    """A spawner for a command; `preload` is what the interpreter's sitecustomize does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(script, encoding="utf-8")
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(preload, encoding="utf-8")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = command or ("python", "script.py", "a b")
        around = {"PATH": path, "NAME": "ä", "PYTHONPATH": f"{folder}/site", **variables}
        begin = make_begin(folder, *words, **around)
        begin = replace(begin, workers=replace(begin.workers, prefork=prefork))
        remarks: list[str] = []
        environment = WorkerEnvironment(begin, folder / "agent.sock")
        spawner = ForkSpawner(begin, environment, remarks.append, remarks.append)
        try:
            yield Room(spawner, remarks, folder)
        finally:
            await spawner.close()


@pytest.mark.parametrize(("prefork", "way"), [(True, "forked"), (False, "executed (--no-prefork)")])
@alone
async def test_forked_and_executed_workers_have_the_same_words_variables_and_place(*, prefork: bool, way: str) -> None:
    async with spawning(prefork=prefork) as room:
        texts = await asyncio.gather(*map(room.run, LAUNCHES))
        assert texts == [f"{rank} ä ['a b'] True False\n" for rank in range(4)]
        assert room.ways() == [way] * 4
        assert room.remarks[0].startswith("a:")


@pytest.mark.parametrize(
    ("script", "prefork", "reported"),
    [
        ("if False:\n  from mpi4py import MPI", False, 1),
        ("import os", False, 0),
        ("import os #, mpi4py", False, 0),
        ("if False:\n  import mpi4py, horovod", False, 0),
        ("if False:\n  import os, mpi4py", True, 0),
    ],
    ids=["it alone", "not at all", "in a comment", "with hvd", "forked"],
)
@alone
async def test_an_executed_script_of_mpi4py_is_warned_once_that_mpi_does_not_know_the_job(
    script: str, *, prefork: bool, reported: int
) -> None:
    async with spawning(prefork=prefork, script=script) as room:
        for launch in (LAUNCHES[1], LAUNCHES[0], LAUNCHES[0]):
            await room.run(launch)
        known = "mpi4py does not know this job: in MPI each worker is rank 0 of 1; start the script with mpirun -np 4"
        assert sum(remark.startswith(known) for remark in room.remarks) == reported


@pytest.mark.parametrize(
    ("script", "reported"),
    [("def f(init): init(init_method='file:///tmp/x')", 1), ("def f(init): init(init_method='env://')", 0)],
    ids=["a file", "the variables"],
)
@alone
async def test_a_script_that_meets_in_a_file_is_warned_in_its_second_round_that_the_file_is_old(
    script: str, reported: int
) -> None:
    async with spawning(prefork=False, script=script) as room:
        first, *_ = LAUNCHES
        await room.run(replace(first, round=Round(0, 0, 1)))
        assert not any("init_method" in remark for remark in room.remarks)
        for number in (1, 2):
            await room.run(replace(first, round=Round(number, 0, 1)))
        assert sum(remark.startswith("the script names init_method='file:...'") for remark in room.remarks) == reported


@alone
async def test_a_command_that_names_a_file_url_is_warned_of_the_old_file() -> None:
    async with spawning("sh", "-c", "", "--dist-url", "file:///tmp/x", prefork=False) as room:
        for number in (0, 1, 2):
            await room.run(replace(LAUNCHES[0], round=Round(number, 0, 1)))
        reported = "the command names file:///tmp/x: if its workers meet in this file"
        assert sum(remark.startswith(reported) for remark in room.remarks) == 1


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
links = [os.readlink(f"/proc/self/fd/{each}") for each in descriptors if os.path.lexists(f"/proc/self/fd/{each}")]
opened = [link for link in links if "libffi" not in link]  # which may keep its own file open
print(__name__, sys.argv[1:], dict(os.environ), os.getcwd(), is_leader, len(opened))
"""


@alone
async def test_a_module_of_ours_is_forked_where_workers_are() -> None:
    for prefork in (True, False):
        async with spawning(prefork=prefork) as room:
            (room.folder / "site/show.py").write_text(SHOW_MODULE)
            expected = "__main__ ['word'] {'NAME': 'value'} / True 3\n" if prefork else None
            assert await fork_a_module(room) == expected


TOO_EARLY = "which must be set before the imports"
REASONS = [
    (("python", "-u", "script.py"), "pass", {}, "not a plain Python command"),
    (("sh", "-c", "exit 0"), "pass", {}, "not a plain Python command"),
    (("python", "script.py"), "pass", {"MKL_NUM_THREADS": "2"}, "MKL_NUM_THREADS is set"),
    (("python", "script.py"), "'OMP_PROC_BIND'", {}, f"the script names OMP_PROC_BIND, {TOO_EARLY}"),
    (("python", "-m", "script"), "'LD_PRELOAD'", {}, f"the script names LD_PRELOAD, {TOO_EARLY}"),
]


@pytest.mark.parametrize(("command", "script", "variables", "reason"), REASONS)
@alone
async def test_a_command_that_is_not_forked_is_executed_with_the_reason(
    command: tuple[str, ...], script: str, variables: dict[str, str], reason: str
) -> None:
    async with spawning(*command, script=script, variables=variables) as room:
        assert await room.run() == ""
        assert room.ways() == [f"executed ({reason})"]


@alone
async def test_a_worker_is_forked_from_another_forkserver_when_the_first_is_stopped() -> None:
    async with spawning(script="print('alive')") as room:
        assert await room.run() == "alive\n"
        ((pid, name),) = room.spawner.list_living()
        assert name == "the forkserver"
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(room.run())
        await asyncio.sleep(0)
        room.spawner.note_stopped(pid + 1, "the agent has not started it")
        assert room.spawner.list_living() == ((pid, name),)
        room.spawner.note_stopped(pid, "the forkserver was stopped")
        assert await waiting == "alive\n"
        assert room.ways() == ["forked", "forked"]
        ((replacement, _),) = room.spawner.list_living()
        assert replacement != pid


@alone
async def test_workers_are_forked_after_the_forkserver_was_killed() -> None:
    async with spawning(script="print('alive')") as room:
        for _ in range(3):
            assert await asyncio.gather(*map(room.run, LAUNCHES)) == ["alive\n"] * 4
            ((pid, _),) = room.spawner.list_living()
            os.kill(pid, signal.SIGKILL)
        assert room.ways() == ["forked"] * 12


@alone
async def test_workers_are_executed_when_the_forkserver_dies_before_it_is_ready() -> None:
    dies = "import os, sys\nif 'worker_runtime.startup.forkserver' in sys.orig_argv: os.kill(os.getpid(), 9)"
    async with spawning(script="print('alive')", preload=dies) as room:
        assert [await room.run() for _ in range(2)] == ["alive\n"] * 2
        assert room.ways() == ["executed (the forkserver ended)"] * 2
        assert room.spawner.list_living() == ()


@alone
async def test_a_closed_spawner_starts_no_other_forkserver() -> None:
    async with spawning(script="print('alive')") as room:
        assert await room.run() == "alive\n"
        ((pid, _),) = room.spawner.list_living()
        os.kill(pid, signal.SIGKILL)
        waiting = asyncio.create_task(room.run())
        await room.spawner.close()
        assert await waiting == "alive\n"
        assert room.spawner.list_living() == ()


@pytest.mark.parametrize("wanted", ["1", "2", None])
@alone
async def test_a_forked_worker_has_the_number_of_threads_of_its_environment(wanted: str | None) -> None:
    script = "import numpy, threadpoolctl; print([pool['num_threads'] for pool in threadpoolctl.threadpool_info()])"
    preload = "import sys\nif 'worker_runtime.startup.forkserver' in sys.orig_argv: import numpy"
    cpus = len(os.sched_getaffinity(0))
    variables = {} if wanted is None else {"OMP_NUM_THREADS": wanted}
    async with spawning(script=script, preload=preload, variables=variables) as room:
        assert await room.run() == f"[{min(int(wanted or cpus), cpus)}]\n"
        assert room.ways() == ["forked"]


@pytest.mark.parametrize("interpreter", ["python9", "./python3"])
@alone
async def test_a_missing_interpreter_is_reported_like_any_missing_command(interpreter: str) -> None:
    async with spawning(interpreter, "script.py") as room:
        with pytest.raises(CommandNotFoundError):
            await room.spawner.spawn(LAUNCHES[0])
        assert room.remarks == []
