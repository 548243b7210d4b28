"""The story of a job, with real agents and real workers; how it is interrupted is in tests/system."""

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from hvdrun.console import Console
from hvdrun.console.marks import Marks
from hvdrun.errors import LaunchError
from hvdrun.jobspec import JobSpec
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


def test_a_host_that_cannot_be_reached_starts_nothing(spec: JobSpec, streams: tuple[BinaryIO, BinaryIO]) -> None:
    with pytest.raises(LaunchError, match=r"'192\.0\.2\.1' is not this machine"):
        run(replace(spec, hosts=(Host("localhost", 1), Host("192.0.2.1", 1))), streams)


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
