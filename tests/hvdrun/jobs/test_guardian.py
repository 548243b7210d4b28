"""The guardian of a detached job: servers that are killed, the ports that it keeps, the signals that it passes on."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from tests.waiting import wait_until

HEAD = """
import os, signal, socket, sys, time
from hvdrun.jobs import guardian
from hvdrun.jobs.guardian import Life, guard

def say(sentence, level):
    print(sentence, flush=True)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def rest():
    while True:
        time.sleep(0.05)  # a handler whose signal comes just before a sleep runs after it
"""


class Start(Protocol):
    """Starts a guardian whose `serve` is this code."""

    def __call__(self, code: str, *, first: int = 1, patience_seconds: float = 60.0) -> "subprocess.Popen[str]":
        """Also see `guard`."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a guardian in its own session, so that nothing of it is left."""
    running: list[subprocess.Popen[str]] = []

    def start_guardian(code: str, *, first: int = 1, patience_seconds: float = 60.0) -> subprocess.Popen[str]:
        serve = textwrap.indent(textwrap.dedent(code), "    ")
        run = f"guard(serve, say, first={first}, patience_seconds={patience_seconds})"
        program = f"{HEAD}\ndef serve(life):\n{serve}\nend = {run}\nsys.exit(end.code if end.ends_job else 90)\n"
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        return process

    yield start_guardian
    for process in running:
        with process, suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)


def finish(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """The exit code, and the lines of all servers."""
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.splitlines()


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_of_the_server_is_that_of_the_job(start: Start, code: int) -> None:
    assert finish(start(f"return {code}")) == (code, [])


def test_a_server_that_is_killed_is_started_again_and_knows_it(start: Start) -> None:
    process = start(
        """
        print(life.number, life.killed_by, flush=True)
        if life.number < 3:
            kill()
        life.decide_end()
        return 7
        """
    )
    assert finish(process) == (7, ["1 0", "2 9", "3 9"])


def test_a_server_that_is_killed_again_and_again_ends_the_job(start: Start) -> None:
    code, lines = finish(start("kill()"))
    assert code == 137
    assert lines == ["5 servers of this job were killed within 60 s, the last one by SIGKILL: the job ends."]


def test_a_server_that_cannot_start_is_followed_by_another(start: Start) -> None:
    process = start(
        """
        print(life.number, life.killed_by, flush=True)
        if life.number == 1:
            kill()
        if life.number < 4:
            raise MemoryError
        life.decide_end()
        return 7
        """
    )
    says = "the job goes on without a server: another one is started in"
    assert finish(process) == (7, ["1 0", "2 9", f"{says} 1 s.", "3 9", f"{says} 2 s.", "4 9"])


def test_an_unexpected_error_of_a_server_is_printed(start: Start) -> None:
    code, lines = finish(start("os.dup2(1, 2)\nraise RuntimeError('lost')"))
    assert (code, lines[-1]) == (1, "RuntimeError: lost")


def test_a_job_ends_when_its_servers_have_failed_to_start_for_too_long(start: Start) -> None:
    code, lines = finish(start("kill() if life.number == 1 else os._exit(3)", patience_seconds=0.5))
    assert code == 3
    assert lines == [
        "the job goes on without a server: another one is started in 1 s.",
        "no server of this job could be started: the job ends.",
    ]


def test_a_job_without_a_server_can_be_stopped(start: Start) -> None:
    process = start(
        """
        if life.number == 1:
            kill()
        os._exit(3)
        """
    )
    assert process.stdout is not None
    while "2 s" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (3, ["no server of this job could be started: the job ends."])


def test_a_job_stays_as_it_was_when_it_cannot_be_resumed_now(start: Start) -> None:
    assert finish(start("return 3", first=2)) == (90, [])


def test_a_server_without_a_process_is_tried_again(start: Start) -> None:
    process = start(
        """
        resource = __import__("resource")
        limits = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
        if life.number == 1:
            resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, limits[1]))
            kill()
        life.decide_end()
        return 7
        """
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [
        "there can be no process for a server of this job: Too many open files.\n",
        "the job goes on without a server: another one is started in 1 s.\n",
    ]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 64))
    assert finish(process) == (7, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGXCPU, signal.SIGRTMIN + 3])
def test_a_signal_that_comes_before_the_server_can_answer_it_ends_the_job(start: Start, number: int) -> None:
    assert finish(start(f"os.kill(os.getppid(), {number:d}); rest()")) == (128 + number, [])


def test_a_signal_reaches_the_server(start: Start) -> None:
    process = start(
        """
        signal.signal(signal.SIGUSR2, lambda *_: os._exit(5))
        print("ready", flush=True)
        rest()
        """
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    assert finish(process)[0] == 5


def test_a_server_that_is_suspended_receives_the_request_to_stop(start: Start) -> None:
    process = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        life.answer_signals()
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            signal.pause()
        """
    )
    assert process.stdout is not None
    server = int(process.stdout.readline())
    wait_until(lambda: Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (7, [])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_was_asked_to_stop_stays_so_when_its_server_is_killed(start: Start, when: str) -> None:
    process = start(
        f"""
        if life.number == 1:
            signal.signal(signal.SIGTERM, lambda *_: kill())
            if {when == "after"}:
                os.kill(os.getppid(), signal.SIGSTOP)
            print("ready", flush=True)
            if {when == "after"}:
                kill()
            rest()
        time.sleep(0.2)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
        life.answer_signals()
        rest()
        """
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert finish(process)[0] == 5


def test_a_port_stays_that_of_the_job_while_there_is_no_server(start: Start) -> None:
    process = start(
        """
        with socket.socket() as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if life.number == 1:
                port.bind(("127.0.0.1", 0))
                life.keep(port)
                number = port.getsockname()[1]
                open("port", "w").write(str(number))
                kill()
            number = int(open("port").read())
            with socket.socket() as other:
                try:
                    other.bind(("127.0.0.1", number))
                except OSError as error:
                    print(error.strerror)
            with socket.socket() as dialer:
                print(dialer.connect_ex(("127.0.0.1", number)))
            port.bind(("127.0.0.1", number))
            port.listen()
            with socket.create_connection(port.getsockname()):
                print("reached", flush=True)
        life.decide_end()
        return 0
        """
    )
    assert finish(process) == (0, ["Address already in use", "111", "reached"])


def test_the_server_knows_when_the_guardian_has_gone(start: Start, tmp_path: Path) -> None:
    process = start(
        """
        print("runs", flush=True)
        life.line.recv(1)
        open("alone", "w").close()
        return 0
        """
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    wait_until((tmp_path / "alone").exists, "the server to know it")
