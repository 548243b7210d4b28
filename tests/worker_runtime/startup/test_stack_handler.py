"""A worker answers where its main thread is; a service of hvdrun opens nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until
from worker_runtime.rendezvous import INCARNATION, RUNNING_SIGNAL_OFFSET, STACK_DESCRIPTOR, STACK_SIGNAL_OFFSET
from worker_runtime.startup import stack_handler

ASKED = f"""
import os, signal
from worker_runtime.startup import stack_handler
stack_handler.register({{"{INCARNATION}": "1"}})
def stand():
    os.kill(os.getpid(), signal.SIGRTMIN + {STACK_SIGNAL_OFFSET})
    os.kill(os.getpid(), signal.SIGRTMIN + {RUNNING_SIGNAL_OFFSET})
stand()
if os.fork() == 0:
    stand()
    os._exit(0)
os.wait()
print(os.pread({STACK_DESCRIPTOR}, 10000, 0).decode(), os.get_inheritable({STACK_DESCRIPTOR}))
"""

ENDS = f"""
import ctypes, signal
from worker_runtime.startup import stack_handler
libc = ctypes.CDLL(None)
libc.on_exit(libc.pause, None)
stack_handler.register({{"{INCARNATION}": "1"}})
"""


def test_a_worker_and_its_child_answer_in_memory_that_no_program_inherits() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.count("in stand") == 4
    assert done.stdout.count("Stack (most recent call first)") == 4
    assert done.stdout.rstrip().endswith("False")


@pytest.mark.parametrize("environment", [{}, {INCARNATION: "0"}])
def test_a_service_opens_nothing(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", lambda _: pytest.fail("a file was opened"))
    stack_handler.register(environment)


def test_a_kernel_without_memory_files_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    stack_handler.register({INCARNATION: "1"})
    assert signal.getsignal(signal.SIGRTMIN + STACK_SIGNAL_OFFSET) is signal.SIG_DFL


def test_a_question_does_not_kill_a_worker_whose_python_has_ended() -> None:
    numbers = [signal.SIGRTMIN + STACK_SIGNAL_OFFSET, signal.SIGRTMIN + RUNNING_SIGNAL_OFFSET]

    with subprocess.Popen([sys.executable, "-c", ENDS]) as worker:

        def is_ignoring() -> bool:
            _, _, rest = Path(f"/proc/{worker.pid}/status").read_text().partition("SigIgn:")
            return all(int(rest.split()[0], base=16) >> (number - 1) & 1 for number in numbers)

        try:
            wait_until(is_ignoring)
            for number in numbers:
                worker.send_signal(number)
            worker.terminate()
            assert worker.wait() == -signal.SIGTERM
        finally:
            worker.kill()
