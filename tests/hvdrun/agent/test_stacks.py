"""Python programs say where their main thread is; others are named without a stack, and none is harmed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdrun.agent.stacks import RUNNING_SIGNAL, STACK_SIGNAL, parse_frames, take_stacks
from hvdrun.shim.path import FOLDER
from hvdrun.spec.stacks import Frame, Stack
from rendezvous.bootstrap import INCARNATION, RUNNING_SIGNAL_OFFSET, STACK_DESCRIPTOR, STACK_MEMORY, STACK_SIGNAL_OFFSET

LIMIT_SECONDS = 20.0
READY = "print('ready', flush=True)"

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker that runs these lines of Python, or this command; returns its pid once it has printed a line."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(lines: str = "", *command: str, incarnation: str = "1") -> int:
        script = tmp_path / "train.py"
        script.write_text(lines, encoding="utf-8")
        environment = {"PYTHONPATH": str(FOLDER), INCARNATION: incarnation, "PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            command or (sys.executable, "train.py"),
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield run
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ask(pid: int, limit_seconds: float = LIMIT_SECONDS) -> Stack:
    """Where this process is."""
    return take_stacks({pid: pid}, limit_seconds)[pid]


def ask_until(pid: int, function: str) -> Stack:
    """Where this process is, once its place is in this function."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        stack = ask(pid)
        if (stack.place is not None and stack.place.function == function) or time.monotonic() > deadline:
            return stack


# By name: what a function `stand` does for ever.
HANGS = {
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "queue": "queue.Queue().get()",
    "sleep": "time.sleep(1000)",
    "endless loop": "x = 1\n    while True: x = x ^ 3",
    "C call that holds the GIL": "re.match('(a+)+$', 'a' * 60 + 'b')",
    "socket": "a, b = socket.socketpair(); a.recv(1)",
    "subprocess": "subprocess.run(['sleep', '1000'])",
    "two threads": (
        "a, b = threading.Lock(), threading.Lock(); ready = threading.Barrier(2)\n"
        "    def other():\n        with b: ready.wait(); a.acquire()\n"
        "    threading.Thread(target=other, daemon=True).start()\n"
        "    with a: ready.wait(); b.acquire()"
    ),
    "multiprocessing": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,)).start()\n"
    "    multiprocessing.active_children()[0].join()",
}
IMPORTS = "import multiprocessing, queue, re, socket, subprocess, threading, time\n"


@pytest.mark.parametrize("name", HANGS)
def test_a_program_that_hangs_says_where(start: Start, name: str) -> None:
    pid = start(f"{IMPORTS}def stand():\n    {HANGS[name]}\n{READY}\nstand()\n")
    stack = ask_until(pid, "stand")
    assert stack.place is not None
    assert (stack.pid, stack.place.function, Path(stack.place.file).name) == (pid, "stand", "train.py")
    assert stack.place.text == HANGS[name].splitlines()[stack.place.line - 3].strip()


def test_a_program_that_was_asked_often_continues(start: Start) -> None:
    pid = start(f"{IMPORTS}def stand():\n    while True: sum(x * x for x in range(9))\n{READY}\nstand()\n")
    for _ in range(300):  # asked in C, it would have died of some thousand questions
        assert ask(pid).frames[-1].function == "<module>"


def test_a_late_answer_to_an_earlier_question_is_no_part_of_this_one() -> None:
    answer = 'Stack (most recent call first):\n  File "x.py", line 3 in f\n'
    assert list(parse_frames(2 * answer)) == [Frame("x.py", 3, "f")]


def test_names_with_letters_beyond_ascii_are_read() -> None:
    names = r"/\xfcber/\u8bad/\U0001f600/\udcff.py"
    answer = rf'Stack (most recent call first):{chr(10)}  File "{names}", line 3 in f\xfcnf{chr(10)}'
    assert list(parse_frames(answer)) == [Frame("/über/训/😀/\\udcff.py", 3, "fünf")]


def test_the_python_for_which_a_shell_waits_is_asked(start: Start) -> None:
    pid = start(f"import time\n{READY}\ntime.sleep(1000)\n", "sh", "-c", f"{sys.executable} train.py; true")
    stack = ask(pid)
    assert stack.pid != pid
    assert str(stack).startswith("train.py:")


def test_the_program_keeps_its_own_sitecustomize(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import builtins\nbuiltins.ready = 'ready'\n", encoding="utf-8")
    check = "import sitecustomize, time\nassert 'mine' in sitecustomize.__file__\nprint(ready, flush=True)\n"
    search = f"PYTHONPATH={FOLDER}:{tmp_path / 'mine'}"
    pid = start(f"{check}time.sleep(1000)", "env", search, sys.executable, "train.py")
    assert ask(pid).frames


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is stopped meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_program_is_not_asked(start: Start) -> None:
    pid = start(f"import time\n{READY}\ntime.sleep(1000)\n")
    with stopped(pid):
        assert str(ask(pid)) == f"it is stopped: kill -CONT {pid} lets it continue"
    assert ask(pid).frames


# By the reason: a program that cannot be asked.
SILENT = {
    "its program, sleep, is not Python": ("", ("sh", "-c", "echo ready; exec sleep 1000")),
    "its Python has not run hvdrun's start, or has closed what it opens": (
        f"import os, time\nos.closerange(3, 256)\n{READY}\ntime.sleep(1000)\n",
        (),
    ),
    f"its program blocks signal {STACK_SIGNAL}, by which hvdrun asks": (
        f"from signal import *\nimport time\npthread_sigmask(SIG_BLOCK, [{STACK_SIGNAL:d}])\n{READY}\ntime.sleep(99)\n",
        (),
    ),
}


@pytest.mark.parametrize("reason", SILENT)
def test_a_program_that_cannot_be_asked_lives_on(start: Start, reason: str) -> None:
    lines, command = SILENT[reason]
    pid = start(lines, *command)
    deadline = time.monotonic() + LIMIT_SECONDS
    while (said := str(ask(pid))) != reason and time.monotonic() < deadline:  # exec takes a moment
        pass
    assert said == reason
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None


def test_a_program_that_has_taken_the_signal_does_not_answer(start: Start) -> None:
    taken = "".join(f"signal.signal({number:d}, lambda *_: None)\n" for number in (STACK_SIGNAL, RUNNING_SIGNAL))
    pid = start(f"import signal, time\n{taken}{READY}\ntime.sleep(1000)\n")
    assert str(ask(pid, 0.1)) == "it did not answer within 0.1 s"


def test_a_file_that_took_the_place_of_the_memory_is_not_written(start: Start, tmp_path: Path) -> None:
    lines = f"import os, time\nos.closerange(3, 256)\nfile = open('checkpoint', 'w')\n{READY}\ntime.sleep(1000)\n"
    ask(start(lines))
    assert (tmp_path / "checkpoint").read_bytes() == b""


def test_a_service_of_hvdrun_opens_nothing(start: Start) -> None:
    pid = start(f"import time\n{READY}\ntime.sleep(1000)\n", incarnation="0")
    assert not ask(pid).frames


def test_an_ended_process_is_named(start: Start) -> None:
    pid = start(READY)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert str(ask(pid)) == "it has ended"


def test_frames_are_read_from_what_faulthandler_writes() -> None:
    text = (
        'Stack (most recent call first):\n  File "/a b/x.py", line 3 in f\n  File "y.py", line ??? in <module>\n  ...\n'
    )
    assert list(parse_frames(text)) == [Frame("/a b/x.py", 3, "f"), Frame("y.py", 0, "<module>")]


def test_the_signal_and_the_memory_have_one_name() -> None:
    source = (FOLDER / "sitecustomize.py").read_text(encoding="utf-8")
    numbers = f"{STACK_SIGNAL_OFFSET}, {RUNNING_SIGNAL_OFFSET}, {STACK_DESCRIPTOR}"
    assert f'_STACK_MEMORY = {numbers}, "{STACK_MEMORY}"' in source
