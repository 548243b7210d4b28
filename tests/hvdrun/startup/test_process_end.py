"""A program of hvdrun ends as Python would end it, but for the teardown."""

import os
import subprocess
import sys

import pytest

from hvdrun.startup import process_end

PROGRAM = f"""
import atexit, sys, threading
from {process_end.__name__} import end_process

class Slow:
    def __del__(self):
        print("torn down")

slow = Slow()
threading.Thread(target=threading.Event().wait, daemon=True).start()
atexit.register(print, "exit handler")
sys.stdout = open(1, "w", buffering=8192, closefd=False)
sys.stdout.write("buffered ")
end_process(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 125])
def test_exit_handlers_run_and_output_is_written(code: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (code, "buffered exit handler\n", "")


def test_output_that_cannot_be_written_is_reported() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0"], check=False, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writer)
    assert run.returncode == 120
    assert run.stderr == "the output cannot be written: [Errno 32] Broken pipe\n"
