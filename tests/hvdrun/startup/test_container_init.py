"""hvdrun as process 1, in a process namespace of its own."""

import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from hvdrun.startup.container_init import ends_with_container, leave_init_behind
from tests.lab.requirements import do_without, find_missing
from tests.waiting import LIMIT_SECONDS, wait_until

# The program's grandchild becomes an orphan, which process 1 inherits.
ORPHAN = """
import os, time
reading, writing = os.pipe()
if not (child := os.fork()):
    if not (orphan := os.fork()):
        while os.getppid() != 1:
            time.sleep(0.01)
    else:
        os.write(writing, str(orphan).encode())
    os._exit(0)
os.waitpid(child, 0)
orphan = int(os.read(reading, 10))
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.01)
print("reaped")
"""
# The program's grandchild becomes an orphan, and asks.
ADOPTED = """
import os, time
reading, writing = os.pipe()
if not os.fork():
    if not os.fork():
        while os.getppid() != 1:
            time.sleep(0.01)
        from hvdrun.startup.container_init import ends_with_container
        print(ends_with_container(), flush=True)
    os._exit(0)
os.close(writing)
os.read(reading, 1)  # its end
"""
WAIT = "import signal; print('ready', flush=True); signal.pause()"
HANDLES = "import signal; signal.signal(signal.SIGUSR2, lambda *_: exit(7)); " + WAIT


@pytest.fixture
def start() -> Callable[[str], subprocess.Popen[str]]:
    """Starts a program as process 1, which leaves an init behind."""
    if (reason := find_missing()) is not None:
        do_without(reason)

    def start_program(program: str) -> subprocess.Popen[str]:
        source = f"from hvdrun.startup.container_init import leave_init_behind\nleave_init_behind()\n{program}"
        enter = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        return subprocess.Popen([*enter, sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)

    return start_program


def test_processes_that_others_leave_behind_are_reaped(start: Callable[[str], subprocess.Popen[str]]) -> None:
    with start(ORPHAN) as unshare:
        assert unshare.communicate(timeout=LIMIT_SECONDS)[0] == "reaped\n"
    assert unshare.returncode == 0


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [(WAIT, signal.SIGTERM, 128 + signal.SIGTERM), (HANDLES, signal.SIGUSR2, 7)],
    ids=["by default", "by its handler"],
)
def test_a_signal_to_process_1_is_answered(
    start: Callable[[str], subprocess.Popen[str]], program: str, number: int, code: int
) -> None:
    with start(program) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == "ready\n"
        (init,) = psutil.Process(unshare.pid).children()
        init.send_signal(number)
        wait_until(lambda: unshare.poll() is not None, "the end")
    assert unshare.returncode == code


def test_the_container_ends_with_the_program_of_its_init(start: Callable[[str], subprocess.Popen[str]]) -> None:
    asks = "from hvdrun.startup.container_init import ends_with_container\nprint(ends_with_container())"
    other = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}])"
    for program, answer in ((asks, "True"), (other, "False"), (ADOPTED, "False")):
        with start(program) as unshare:
            assert unshare.communicate(timeout=LIMIT_SECONDS)[0] == f"{answer}\n"
    assert not ends_with_container()


def test_any_other_process_stays_alone() -> None:
    before = set(psutil.Process().children())
    leave_init_behind()
    assert set(psutil.Process().children()) <= before  # one of an earlier test may have ended
