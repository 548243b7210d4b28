"""The sequencer of another launcher's world, a child of rank 0: it serves as long as rank 0 lives, and not longer."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from rendezvous.errors import SequencerStartError
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.old_python import play_old_python
from tests.waiting import wait_until
from worker_runtime.coordination import sequencer_child
from worker_runtime.coordination.sequencer_child import SequencerChild

KEY = bytes(range(32))
LIMIT = timedelta(seconds=60)

# A program that forks as a DataLoader does, and prints the pids of its child and of the sequencer.
OWNER = """
import os, sys, time
from datetime import timedelta
from worker_runtime.coordination.sequencer_child import SequencerChild

sequencer = SequencerChild("127.0.0.1")
sequencer.activate(1, 2, bytes(32))
sequencer.await_endpoint(timedelta(seconds=20))
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, sequencer._child.process.pid, flush=True)
sys.stdin.read()
{end}
"""


def connect(process: SequencerChild) -> None:
    """Check that the sequencer listens at its endpoint."""
    endpoint = process.await_endpoint(LIMIT)
    socket.create_connection((endpoint.address, endpoint.port), timeout=LIMIT.total_seconds()).close()


def pid_of(process: SequencerChild) -> int:
    return process._child.process.pid


def test_one_process_serves_all_generations_until_it_is_closed() -> None:
    before = len(list_settled_descriptors())
    with closing(SequencerChild("127.0.0.1")) as process:
        process.activate(1, 2, KEY)
        connect(process)
        pid = pid_of(process)
        process.activate(2, 2, KEY)
        connect(process)
        assert pid_of(process) == pid
        command = " ".join(psutil.Process(pid).cmdline())
        assert command.endswith("worker_runtime.coordination.sequencer 127.0.0.1")
        assert KEY.hex() not in command
        assert os.getsid(pid) == pid
    assert not psutil.pid_exists(pid)
    assert len(list_descriptors()) <= before


def test_a_process_that_was_closed_or_killed_is_replaced() -> None:
    with closing(SequencerChild("127.0.0.1")) as process:
        process.activate(1, 2, KEY)
        connect(process)
        first = pid_of(process)
        process.close()
        process.activate(2, 2, KEY)
        connect(process)
        second = pid_of(process)
        os.kill(second, signal.SIGKILL)
        os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
        process.activate(3, 2, KEY)
        connect(process)
        assert len({first, second, pid_of(process)}) == 3


def test_the_sequencer_has_no_endpoint_before_its_first_generation() -> None:
    with closing(SequencerChild("127.0.0.1")) as process, pytest.raises(SequencerStartError, match="never activated"):
        process.await_endpoint(LIMIT)


def test_a_process_that_cannot_serve_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(SequencerChild("203.0.113.1")) as process:
        process.activate(1, 2, KEY)
        with pytest.raises(
            SequencerStartError, match=r"-m worker_runtime.coordination.sequencer ended with exit code 1$"
        ):
            process.await_endpoint(LIMIT)
    assert "203.0.113.1" in capfd.readouterr().err


def test_a_missing_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(list_settled_descriptors())
    message = "/nowhere/python could not be started: No such file"
    with closing(SequencerChild("127.0.0.1")) as process, pytest.raises(SequencerStartError, match=message):
        process.activate(1, 2, KEY)
    assert len(list_descriptors()) <= before


def test_a_process_that_never_reports_its_port_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_child, "SEQUENCER", "code")  # an interactive console, which reads its input
    with closing(SequencerChild("-q")) as process:
        process.activate(1, 2, KEY)
        with pytest.raises(SequencerStartError, match=r"did not report its port within 0\.5 s"):
            process.await_endpoint(timedelta(seconds=0.5))


@pytest.mark.parametrize(
    ("end", "number", "old"),
    [("", None, None), ("os._exit(3)", None, "absent"), ("", signal.SIGKILL, "refused"), ("", signal.SIGTERM, None)],
)
def test_the_process_ends_with_its_owner_while_a_forked_child_of_the_owner_lives(
    end: str, number: signal.Signals | None, old: str | None, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(end=end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(play_old_python(tmp_path, old) if old else {})},
    ) as owner:
        child, pid = map(int, owner.stdout.readline().split())
        try:
            assert psutil.pid_exists(pid)
            if number is None:
                owner.stdin.close()
            else:
                owner.send_signal(number)
            owner.wait(LIMIT.total_seconds())
            wait_until(lambda: not is_alive(pid), "the end of the sequencer")
            assert is_alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_forked_child_can_drop_the_sequencer() -> None:
    with closing(SequencerChild("127.0.0.1")) as process:
        process.activate(1, 2, KEY)
        connect(process)
        pipes = process._child.orders, process._child.output
        child = os.fork()
        if child == 0:
            process.abandon()
            process.close()
            os._exit(sum(not os.path.exists(f"/proc/self/fd/{number}") for number in pipes))  # noqa: PTH110 - a forked child runs as little code as it can
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(pipes)
        connect(process)
