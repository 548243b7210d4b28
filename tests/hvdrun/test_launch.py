"""The story of a job, with real agents and real workers; how it is interrupted is in tests/system."""

import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from hvdrun.console import Console
from hvdrun.console.marks import Marks
from hvdrun.errors import HostsOverdueError, LaunchError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec, RemoteSide, SshOptions
from hvdrun.launch import launch
from rendezvous.core.model import Host
from rendezvous.orders import OutputStream

LIMIT_SECONDS = 10.0


@dataclass
class Told:
    """What a job wrote, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def streams() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        yield out, err


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec(command=("true",), size=2, hosts=(Host("localhost", 2),), directory=tmp_path)


def run(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> Told:
    out, err = streams
    descriptors = {OutputStream.STDOUT: out.fileno(), OutputStream.STDERR: err.fileno()}
    console = Console(verbose=spec.verbose, marks=Marks(), descriptors=descriptors)
    try:
        code = launch(spec, console)
    finally:
        console.end(LIMIT_SECONDS)
    out.seek(0)
    err.seek(0)
    return Told(code, out.read().decode(), err.read().decode())


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of the loopback address at which nobody listens yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which ssh is told that `far` is an address of this machine."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "config").write_text("Host far\n  HostName 127.0.0.1\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def make_remote(spec: JobSpec, port: socket.socket) -> JobSpec:
    """With a worker on `far`, which has its ssh server at this port."""
    return replace(
        spec,
        hosts=(Host("localhost", 1), Host("far", 1)),
        remote=RemoteSide(frozenset({"far"}), spec.command, sys.executable),
        ssh=SshOptions(port=port.getsockname()[1]),
    )


def shell(spec: JobSpec, script: str) -> JobSpec:
    return replace(spec, command=("sh", "-c", script))


def test_a_job_that_ends_well_says_what_its_workers_say(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    told = run(shell(spec, "echo $HOROVOD_RANK of $HOROVOD_SIZE"), streams)
    assert (told.code, told.err) == (0, "")
    assert sorted(told.out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


def test_a_job_that_fails_has_a_page(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    told = run(shell(spec, "[ $HOROVOD_RANK = 0 ] && sleep 600; echo no data >&2; exit 3"), streams)
    assert told.code == 3
    assert "hvdrun: rank 1 on localhost (slot 1) failed first after" in told.err
    assert "  | no data\n" in told.err
    assert told.err.endswith("  Because of it rank 0 was ended.\n")


def test_a_command_that_cannot_be_started_is_one_sentence(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], tmp_path: Path
) -> None:
    told = run(replace(spec, command=(str(tmp_path / "gone"),)), streams)
    assert told.code == 127
    assert told.err == f"hvdrun: the command '{tmp_path}/gone' was not found: looked in {tmp_path}/gone.\n"


def test_on_several_hosts_it_is_said_on_which_a_command_cannot_be_started(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]
) -> None:
    told = run(replace(spec, hosts=(Host("127.0.0.1", 1), Host("localhost", 1)), command=("/gone",)), streams)
    assert told.code == 127
    assert re.fullmatch(r"hvdrun: on the host '[a-z0-9.]+', the command '/gone' was not found: .*\n", told.err)


@pytest.mark.usefixtures("home")
def test_a_host_that_cannot_be_reached_starts_nothing(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], port: socket.socket, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match="'far' refused the ssh connection"):
        run(shell(make_remote(spec, port), f"touch '{tmp_path}/started'"), streams)
    assert not (tmp_path / "started").exists()


@pytest.mark.usefixtures("home")
def test_a_host_that_is_not_connected_to_in_time_is_named(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], port: socket.socket
) -> None:
    port.listen()  # and never a word
    with pytest.raises(HostsOverdueError, match=r"^no agent runs on far after 0\.5 s") as caught:
        run(replace(make_remote(spec, port), start_timeout_seconds=0.5), streams)
    assert caught.value.exit_code == 124


@pytest.mark.usefixtures("home")
def test_a_signal_while_a_host_is_connected_to_ends_the_job_at_once(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], port: socket.socket
) -> None:
    port.listen()

    def interrupt() -> None:
        connection, _ = port.accept()
        with connection:
            while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    told = run(make_remote(spec, port), streams)
    interrupting.join(LIMIT_SECONDS)
    assert (told.code, told.err) == (143, "hvdrun: SIGTERM came to hvdrun.\n")


@pytest.mark.usefixtures("home")
def test_a_signal_while_a_failed_start_is_cleared_away_is_no_end_without_a_word(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_well = Fleet.close

    async def close(fleet: Fleet) -> None:
        await close_well(fleet)
        os.kill(os.getpid(), signal.SIGTERM)  # which would end this process
        await asyncio.sleep(LIMIT_SECONDS)

    monkeypatch.setattr(Fleet, "close", close)
    began = time.monotonic()
    with pytest.raises(LaunchError, match="'far' refused the ssh connection"):
        run(make_remote(spec, port), streams)
    assert time.monotonic() - began < LIMIT_SECONDS


def test_who_is_verbose_hears_of_decisions(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    told = run(replace(spec, verbose=True), streams)
    assert "hvdrun: launch localhost:0: placed\n" in told.err


def test_the_workers_do_not_inherit_what_is_said_to_another_worker(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HVD_JOB", "outer"), ("HVD_SLOT", "host:3"), ("HVD_INCARNATION", "1"), ("HVD_OTHER", "x")):
        monkeypatch.setenv(name, value)
    told = run(shell(replace(spec, size=1), "echo $HVD_JOB $HVD_SLOT $HVD_OTHER"), streams)
    job, slot = told.out.removeprefix("[0] ").split()
    assert job.startswith("outer/host/3.1/")  # so that it ends with the worker around it
    assert slot == "localhost:0"


def test_two_jobs_have_different_names(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    told = run(shell(spec, "echo $HVD_JOB"), streams)
    other = run(shell(spec, "echo $HVD_JOB"), streams)
    assert len({line.split()[1] for line in told.out.splitlines()}) == 1
    assert len({line.split()[1] for line in (told.out + other.out).splitlines()}) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_that_is_ignored_stays_ignored(
    spec: JobSpec, streams: tuple[BinaryIO, BinaryIO], number: signal.Signals
) -> None:
    former = signal.signal(number, signal.SIG_IGN)
    try:
        told = run(shell(spec, f"kill -{number.value} {os.getpid()}"), streams)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, former)
    assert (told.code, told.err) == (0, "")


def test_after_the_job_signals_mean_what_they_meant(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    former = [signal.getsignal(number) for number in numbers]
    run(spec, streams)
    assert [signal.getsignal(number) for number in numbers] == former


def test_a_signal_stops_the_job_with_its_code(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    told = run(shell(spec, f"kill -TERM {os.getpid()}; sleep 600"), streams)
    assert told.code == 143
    assert told.err == "hvdrun: SIGTERM came to hvdrun.\n"
