"""pytest at a terminal: the debugger stops where rank 0 has failed, or at a breakpoint."""

import sys
from pathlib import Path

import pytest

from hvdrun.testing.debugger import debug
from tests.hvdrun.testing.terminal import Terminal

pytestmark = pytest.mark.system

TESTS = """
import pytest
pytestmark = pytest.mark.hvdrun(np=2)
def test_first():
    import os
    secret = int(os.environ["HOROVOD_RANK"]) + 41
    assert secret == 0
def test_second(): assert 0
def test_third(): pass
"""

BREAKPOINTS = """
import os, pdb
import pytest
pytestmark = pytest.mark.hvdrun(np=2)
def test_first():
    rank = int(os.environ["HOROVOD_RANK"])
    breakpoint()
    secret = rank + 41
    assert secret
def test_second():
    pdb.set_trace()
    pass
"""


def test_pdb_stops_on_rank_0_and_c_continues_and_q_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_debugged.py").write_text(TESTS)
    words = ["-p", "no:randomly", "-p", "no:cacheprovider", "--pdb", "test_debugged.py"]
    terminal = Terminal([sys.executable, "-m", "pytest", *words], tmp_path)
    terminal.wait_for("(Pdb) ")
    assert "you are in that process" in terminal.shown
    terminal.type("p secret\n")
    terminal.wait_for("41")
    terminal.wait_for("(Pdb) ")
    terminal.type("c\n")
    terminal.wait_for("(Pdb) ")
    terminal.type("q\n")
    assert terminal.end() == pytest.ExitCode.INTERRUPTED, terminal.shown
    assert "Quitting debugger" in terminal.shown
    assert "1 failed" in terminal.shown


@pytest.mark.nightly
def test_a_breakpoint_stops_on_rank_0_and_n_steps_and_c_continues_and_q_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_stopped.py").write_text(BREAKPOINTS)
    words = ["-p", "no:randomly", "-p", "no:cacheprovider", "test_stopped.py"]
    terminal = Terminal([sys.executable, "-m", "pytest", *words], tmp_path)
    for typed, shown in (
        ("n", "-> assert secret"),
        ("p secret", "41"),
        ("c", "-> pass"),
    ):
        terminal.wait_for("(Pdb) ")
        terminal.type(f"{typed}\n")
        terminal.wait_for(shown)
    terminal.type("q\n")
    assert terminal.end() == pytest.ExitCode.INTERRUPTED, terminal.shown
    assert "Quitting debugger" in terminal.shown
    assert "1 passed" in terminal.shown


def test_a_terminal_that_cannot_be_opened_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        debug(str(tmp_path / "none"), "", None)
