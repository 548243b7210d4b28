"""Functions from programs of all kinds: the interpreter's words, a notebook, one that is killed, elastic ones."""

import os
import re
import signal
import subprocess
import sys

import nbclient
import nbformat
import pytest

from tests.system.launcher import LIMIT_SECONDS, Launcher
from tests.waiting import wait_until

# Of `__main__`: a function, a class, a closure; what it returns has the program's own class; the cluster stays open.
TYPED_WORDS = """
import hvdrun
class Pair:
    def __init__(self, rank): self.rank = rank
def work(factor):
    import os
    return Pair(int(os.environ["HOROVOD_RANK"]) * factor)
cluster = hvdrun.Cluster(num_proc=2, no_prefork=True, env={"GREETING": "hello"})
first, second = cluster.run(work, (3,))
assert isinstance(second, Pair) and (first.rank, second.rank) == (0, 3)
size = 300_000
print([len(result) for result in cluster.run(lambda: "x" * size)])
print(cluster.run(lambda: __import__("os").environ["GREETING"]))
"""

KILLED = """
import os, time
import hvdrun
cluster = hvdrun.Cluster(num_proc=2, no_prefork=True)
cluster.run(int)
if os.fork() == 0:
    time.sleep(600)  # holds what the program had open
print("ready", flush=True)
time.sleep(600)
"""

ELASTIC = """
import os
import horovod, hvdrun
def train():
    import horovod.torch as hvd, torch
    hvd.init()
    state = hvd.elastic.TorchState(batch=0)
    @hvd.elastic.run
    def loop(state):
        while state.batch < 5:
            if state.batch == 2 and hvd.rank() == 1 and not Path("died").exists():
                Path("died").touch()
                os._exit(9)
            hvd.allreduce(torch.ones(1))
            state.batch += 1
            state.commit()
        return state.batch
    return loop(state)
print(set(hvdrun.run(train, num_proc=2, min_num_proc=1, hosts="localhost:2")))
print(horovod.run(train, num_proc=2, min_num_proc=1, hosts="localhost:2"))
try:
    horovod.run(lambda: 1 / 0, num_proc=1)
except RuntimeError as error:
    print(type(error.__cause__).__name__)
"""

CELLS = """
import asyncio, beside, hvdrun, os, signal, time
asyncio.get_running_loop()
cluster = hvdrun.Cluster(num_proc=2, no_prefork=True)
def work(x):
    print("here")
    return x * factor
factor, kernel = 5, os.getpid()
---
print("before"); result = cluster.run(work, (2,)); print("after"); result
---
cluster.run(beside.get_name)
---
def interrupt():
    if os.environ["HOROVOD_RANK"] == "0":
        os.kill(kernel, signal.SIGINT)
    time.sleep(600)
try:
    cluster.run(interrupt)
except KeyboardInterrupt:
    print("interrupted")
---
cluster.run(work, (3,))
"""


def start(hvdrun: Launcher, text: str, **variables: str) -> subprocess.Popen[str]:
    """A Python that runs this, as `python -c` or a person at the prompt would."""
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=hvdrun.directory,
        env={**hvdrun.environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_functions_and_classes_of_the_prompt_work_and_the_interpreter_s_end_ends_the_workers(hvdrun: Launcher) -> None:
    with start(hvdrun, TYPED_WORDS) as program:
        assert program.communicate(timeout=LIMIT_SECONDS) == ("[300000, 300000]\n['hello', 'hello']\n", "")
    assert program.returncode == 0


def test_a_program_that_is_killed_leaves_no_worker_though_a_child_of_it_lives(hvdrun: Launcher) -> None:
    with start(hvdrun, KILLED) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        child = next(process for process in hvdrun.processes(" -c ") if process.pid != program.pid)
        program.kill()
        wait_until(lambda: not hvdrun.processes("hvdrun.cluster") and not hvdrun.processes("worker_runtime"))
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not hvdrun.processes(" -c "))


def test_an_elastic_function_outlives_a_worker_and_horovods_run_is_served(hvdrun: Launcher) -> None:
    from hvdrun.shim.path import FOLDER  # noqa: PLC0415 - the fixture has the package's name

    with start(hvdrun, ELASTIC, PYTHONPATH=str(FOLDER)) as program:
        out, err = program.communicate(timeout=2 * LIMIT_SECONDS)
    assert out.splitlines() == ["{5}", "[5]", "ZeroDivisionError"], err


def read_outputs(cell: nbformat.NotebookNode) -> str:
    """What stands beneath a cell, without the lines about a start."""
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return re.sub(r"hvdrun: (starting 2 workers on localhost \.\.\.|2 workers ready after .* s)\n", "", "".join(texts))


def test_a_notebook_shows_output_in_its_cell_survives_an_interrupt_and_leaves_nothing(
    hvdrun: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hvdrun.directory / "beside.py").write_text("def get_name():\n    return __name__\n", encoding="utf-8")
    for name, value in hvdrun.environment().items():
        monkeypatch.setenv(name, value)
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS.split("---\n")]  # type: ignore[no-untyped-call]  # it ships no types
    book = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]  # it ships no types
    client = nbclient.NotebookClient(
        book, timeout=LIMIT_SECONDS, resources={"metadata": {"path": str(hvdrun.directory)}}
    )

    with client.setup_kernel():
        for index, cell in enumerate(book.cells):
            client.execute_cell(cell, index)
    shown = [read_outputs(cell).splitlines() for cell in book.cells]
    assert (shown[1][0], sorted(shown[1][1:3]), shown[1][3:]) == (
        "before",
        ["[0] here", "[1] here"],
        ["after", "[10, 10]"],
    )
    assert shown[2] == ["['beside', 'beside']"]
    assert shown[3][-1] == "interrupted"
    assert shown[4][-1] == "[15, 15]"


@pytest.mark.nightly
def test_a_result_above_2_gb_comes_back(hvdrun: Launcher) -> None:
    words = "import hvdrun; print([len(x) for x in hvdrun.run(lambda: bytes(2**31 + 1), num_proc=1, no_prefork=True)])"
    with start(hvdrun, words) as program:
        assert program.communicate(timeout=4 * LIMIT_SECONDS) == (f"[{2**31 + 1}]\n", "")
