"""The program that agents ask."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from rendezvous.backend import MODULE, read_answer
from worker_runtime.backends import __main__ as program

ROOT = Path(__file__).parents[3]


def ask(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", MODULE, *arguments], cwd=ROOT, capture_output=True, check=False)


def test_it_answers_with_code_0_whatever_the_answer() -> None:
    run = ask("gloo")
    assert (run.returncode, read_answer(run.stdout), run.stderr) == (0, "", b"")


@pytest.mark.parametrize("arguments", [(), ("foo",), ("ucc", "mpi")])
def test_wrong_use_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", *arguments])
    assert program.main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "one argument was expected: gloo, nccl, ucc, mpi\n")


@pytest.mark.parametrize("is_there", [True, False])
def test_the_answer_is_what_torch_has(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_there: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", "mpi"])
    monkeypatch.setattr(dist, "is_mpi_available", lambda: is_there)
    assert program.main() == 0
    objection = read_answer(capsys.readouterr().out.encode())
    assert objection is not None
    assert ("no MPI" in objection) is not is_there


def test_an_elastic_job_is_told_what_it_cannot_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", "mpi"])
    monkeypatch.setattr(dist, "is_mpi_available", lambda: True)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    assert program.main() == 0
    assert "cannot be ended when a worker is lost" in (read_answer(capsys.readouterr().out.encode()) or "")


def test_a_python_without_torch_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", "ucc"])
    for name in [name for name in sys.modules if name.startswith("worker_runtime.backends.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert program.main() == 0
    assert "torch cannot be imported" in (read_answer(capsys.readouterr().out.encode()) or "")
