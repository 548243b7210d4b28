"""The check after each system test finds what a job may leave, reports it, and leaves that of others alone."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.system.leftovers import SHARED_MEMORY, Leftovers, Watch, make_room

SLEEP = "import time; print('asleep', flush=True); time.sleep(60)"
# Leaves the session, the parent and the environment: only its working directory shows whose it is.
DAEMON = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["python", "-c", {SLEEP!r}], {{}})
    os._exit(0)
os.wait()
"""
LISTENER = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""
LEAVES_A_SLEEPER = """
import subprocess

def test_that_leaves_a_process(hvdrun):
    subprocess.Popen(["sleep", "60"], env=hvdrun.environment(), start_new_session=True)
"""
LEAVES_NOTHING = """
import subprocess

def test_that_leaves_nothing(hvdrun):
    subprocess.run(["true"], env=hvdrun.environment(), check=True)
"""
FAILS_WITH_A_JOB = """
def test_that_fails(hvdrun):
    hvdrun.start("-np", "1", "sleep", "60").stderr.wait_for("never printed", limit_seconds=0)
"""


@pytest.fixture
def watch() -> Iterator[Watch]:
    room = make_room()
    found = Watch.begin(room)
    yield found
    found.sweep()
    shutil.rmtree(room)


def start(program: str, environment: dict[str, str], directory: Path = ROOT) -> tuple[subprocess.Popen[str], str]:
    """Start a Python program in a session of its own; also the first line that it, or a child, prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> None:
    """Reap what a sweep has killed, so that nothing of it outlives the test."""
    process.communicate(timeout=60)


def test_no_leftover_is_found_after_a_clean_test(watch: Watch) -> None:
    assert not watch.settle()


def test_a_sleeping_process_is_found_and_swept(watch: Watch) -> None:
    process, _ = start(SLEEP, watch.environment())

    (left,) = watch.settle(0).processes
    assert (left.pid, left.parent) == (process.pid, os.getpid())
    assert "time.sleep(60)" in str(left)

    watch.sweep()
    finish(process)
    assert not watch.settle()


def test_a_daemon_that_has_shed_session_parent_and_environment_is_found_and_swept(watch: Watch) -> None:
    process, _ = start(DAEMON, watch.environment(), watch.temporary)
    process.wait(60)

    (left,) = watch.settle(0).processes
    assert left.pid != process.pid
    assert left.parent != os.getpid()
    assert "time.sleep(60)" in left.command

    watch.sweep()
    finish(process)
    assert not watch.settle()


def test_a_listening_socket_is_reported_with_its_process(watch: Watch) -> None:
    process, port = start(LISTENER, watch.environment())
    assert f"listening on 127.0.0.1:{port}" in str(watch.settle(0))
    watch.sweep()
    finish(process)


def test_a_temporary_file_is_found(watch: Watch) -> None:
    path = watch.temporary / "hvdrun-abc"
    path.mkdir()
    assert watch.settle(0) == Leftovers(paths=(path,))


def test_a_file_in_shared_memory_is_found(watch: Watch) -> None:
    path = SHARED_MEMORY / f"torch_{uuid.uuid4()}"
    path.touch()
    try:
        assert path in watch.settle(0).paths
    finally:
        path.unlink()


def test_a_file_that_was_there_before_is_not_blamed_on_the_test(tmp_path: Path) -> None:
    path = SHARED_MEMORY / f"torch_{uuid.uuid4()}"
    path.touch()
    try:
        assert path not in Watch.begin(tmp_path).look().paths
    finally:
        path.unlink()


def test_shared_memory_of_another_process_is_no_leftover(watch: Watch) -> None:
    path = SHARED_MEMORY / f"torch_{uuid.uuid4()}"
    program = f"held = open({str(path)!r}, 'w'); {SLEEP}"
    process, _ = start(program, dict(os.environ))
    try:
        assert path not in watch.look().paths
    finally:
        process.kill()
        finish(process)
        path.unlink()


def test_a_file_that_another_process_leaves_for_a_moment_is_no_leftover(watch: Watch) -> None:
    end = threading.Event()

    def come_and_go() -> None:
        here = [SHARED_MEMORY / f"torch_{uuid.uuid4()}"]
        here[0].touch()
        while not end.wait(0.1):
            here.append(SHARED_MEMORY / f"torch_{uuid.uuid4()}")
            here[-1].touch()
            here.pop(0).unlink()  # so there is one at any moment
        here[0].unlink()

    others = threading.Thread(target=come_and_go)
    others.start()
    try:
        assert not watch.settle()
    finally:
        end.set()
        others.join()


def test_a_process_of_another_user_is_no_leftover(watch: Watch) -> None:
    process, _ = start(SLEEP, dict(os.environ))
    try:
        assert not watch.look().processes
        watch.sweep()
        assert process.poll() is None
    finally:
        process.kill()
        finish(process)


def test_a_process_that_ends_in_time_is_no_leftover(watch: Watch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gate:
        port = gate.getsockname()[1]
        waits = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        with subprocess.Popen([sys.executable, "-c", waits], env=watch.environment()) as process:
            connection, _ = gate.accept()
            assert watch.look().processes
            connection.close()
            process.wait(60)
    assert not watch.settle()


@pytest.mark.parametrize(
    ("test", "closing_line", "reported"),
    [
        (LEAVES_NOTHING, "1 passed", ""),
        (LEAVES_A_SLEEPER, "1 passed, 1 error", r"left behind by this test:\nprocess \d+ .*: sleep 60"),
        (FAILS_WITH_A_JOB, "1 failed", "waited for 'never printed'"),
    ],
    ids=["nothing", "a sleeper", "a job, having failed"],
)
def test_each_system_test_is_checked(tmp_path: Path, test: str, closing_line: str, reported: str) -> None:
    shutil.copy(ROOT / "tests" / "system" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(test, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "--import-mode=importlib"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"= {closing_line} in " in run.stdout, run.stdout + run.stderr
    assert re.search(reported, run.stdout)
