"""What is kept of a job that hangs."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.system.evidence import keep_evidence

WAITING = """
import sys, threading
from pathlib import Path
from tests.system.evidence import offer_stacks

def wait_for_a_peer():
    print("waits", flush=True)
    threading.Event().wait()

offer_stacks(Path(sys.argv[1]))
threading.Thread(target=wait_for_a_peer).start()
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two that hang; SIGSTOP has stopped the second one."""
    (tmp_path / "notes").mkdir()
    words = [sys.executable, "-c", WAITING, str(tmp_path / "notes")]
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            worker = stack.enter_context(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            stack.callback(worker.kill)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "waits\n"
            started.append(worker)
        started[1].send_signal(signal.SIGSTOP)
        yield started


def test_evidence_has_the_stacks_of_all_threads_and_what_stops_a_worker_without_any(
    tmp_path: Path, workers: list[subprocess.Popen[str]]
) -> None:
    pids = [worker.pid for worker in workers]
    (tmp_path / "notes" / "1.notes").write_text("step 3")
    into = tmp_path / "evidence"
    keep_evidence([*pids, 1 << 30], tmp_path / "notes", {"0.stderr": "a line"}, into)
    stacks = [(into / "notes" / f"{pid}.stacks").read_text() for pid in pids]
    assert "in wait_for_a_peer" in stacks[0]
    assert stacks[0].count("most recent call first") == 2
    assert stacks[1] == ""
    states = [(into / f"{pid}.kernel").read_text() for pid in pids]
    assert [" T " in state for state in states] == [False, True]
    assert all(" open files\n" in state for state in states)
    assert (into / "0.stderr").read_text() == "a line"
    assert (into / "notes" / "1.notes").read_text() == "step 3"
