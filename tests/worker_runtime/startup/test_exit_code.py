"""With which code a program has ended, as its exit hooks see it, and as its process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_runtime.startup.program_end import describe_end

# What comes first is done by `init()`; the answer is given when the program has ended.
PROGRAM = """
import os, sys, threading
sys.path.insert(0, {root!r})
from worker_runtime.startup.program_end import ExitCode
exit_code = ExitCode()
threading._register_atexit(lambda: print(exit_code.find_failure(), flush=True))
def leave(status):
    try:
        sys.exit(status)
    except SystemExit:
        pass
def fail_within(code):  # as C code that prints an error and continues
    import ctypes
    ctypes.PyDLL(None).PyRun_SimpleString(code)
{program}
"""
ROOT = str(Path(__file__).parents[3])


@pytest.mark.parametrize(
    ("program", "found", "code"),
    [
        ("pass", None, 0),
        ("sys.exit()", None, 0),
        ("sys.exit(0)", None, 0),
        ("sys.exit(256)", None, 0),
        ("sys.exit(3)", 3, 3),
        ("sys.exit(-1)", 255, 255),
        ("sys.exit('a sentence')", 1, 1),
        ("sys.exit(True)", 1, 1),
        ("raise ValueError", 1, 1),
        ("raise KeyboardInterrupt", -2, -2),
        ("import runpy; runpy.run_path('/no/such/file')", 1, 1),
        ("leave(3)", None, 0),
        ("leave(3); sys.exit(4)", 4, 4),
        ("leave(3); raise ValueError", 1, 1),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", None, 0),
        ("fail_within(b'1 / 0')", None, 0),
        ("fail_within(b'1 / 0'); sys.exit(5)", 5, 5),
        ("sys.excepthook = lambda *_: None; raise ValueError", 1, 1),
        ("raise SystemExit(3)", None, 3),  # which no report contains
        ("pid = os.fork(); os.waitpid(pid, 0) if pid else sys.exit(3)", "3\nNone", 0),
    ],
)
@pytest.mark.parametrize("way", ["script", "module"])
def test_a_failure_is_known_before_the_teardown(
    tmp_path: Path, way: str, program: str, found: object, code: int
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(root=ROOT, program=program))
    words = ["program.py"] if way == "script" else ["-m", "program"]
    finished = subprocess.run(
        [sys.executable, "-S", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (finished.stdout, finished.returncode) == (f"{found}\n", code), finished.stderr


@pytest.mark.parametrize(
    ("error", "returncode", "place", "reported"),
    [
        (None, None, "", "ended"),
        (None, None, "x.py:4", "ended with 0 at x.py:4"),
        (None, 3, "x.py:4", "ended with 3 at x.py:4"),
        (None, 3, "", "ended (exit code 3)"),
        (ValueError("no such luck\nat all"), 1, "", "ended (ValueError: no such luck)"),
        (KeyboardInterrupt(), -2, "", "ended (KeyboardInterrupt)"),
    ],
)
def test_the_others_learn_of_the_error_or_the_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, returncode: int | None, place: str, reported: str
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert describe_end(returncode, place) == reported
